#!/bin/bash
# privrob on Slurm: one batch job holds a dask scheduler, a worker a GPU, and the driver.
#   ./run_all.sh plan --recipe slurm > privrob.slurm      then set what is marked <- and:   sbatch privrob.slurm
# Names of notebooks, and any option of run_all.sh, may follow:                   sbatch privrob.slurm 'ptr/*'
#
# The checkout, the environment and the results stand on a file system that all nodes share, under the same path.
# Cells go to workers over the network and their rows come back; the driver writes them to results/.cells as each is
# done, and notebooks, figures and verdicts to results/. A job that ran into its time limit, or lost a node, is sent
# again: it goes on at the first missing cell.
#SBATCH --job-name=privrob
#SBATCH --nodes=2                  # <-
#SBATCH --ntasks-per-node=4        # <- workers a node: as many as it has GPUs
#SBATCH --cpus-per-task=2          # a core for cells, a core for a notebook's own computations
#SBATCH --gpus-per-task=1          # <- leave it (and --gpu-bind) out for cores alone, and set DEVICE=cpu
#SBATCH --mem-per-cpu=4G
#SBATCH --time=24:00:00            # <- see ./run_all.sh plan
#SBATCH --no-kill                  # a lost node does not end the job
#SBATCH --output=privrob.%j.log
set -euo pipefail

CHECKOUT="${CHECKOUT:-$SLURM_SUBMIT_DIR}"         # <- the checkout, where run_all.sh is
DEVICE="${DEVICE:-cuda}"
export PRIVROB_DATA="${PRIVROB_DATA:-$CHECKOUT/../privrob-data}"  # <- data sets, on the shared file system
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export PYTHONPATH="$CHECKOUT/lib" PRIVROB_ROOT="$CHECKOUT"
cd "$CHECKOUT"
PATH="$CHECKOUT/.venv/bin:$PATH"                  # <- made by run_all.sh on a login node; with conda .conda-env/bin

host=$(hostname)
port=$((20000 + SLURM_JOB_ID % 20000))
python -m dask scheduler --host "$host" --port "$port" --no-dashboard &
scheduler=$!
# One thread a worker: a cell has its GPU, and its BLAS, for itself. Workers wait for the scheduler, and join it by TCP.
srun --kill-on-bad-exit=0 --cpus-per-task "$SLURM_CPUS_PER_TASK" --gpu-bind=single:1 \
  python -m dask worker "tcp://$host:$port" --nthreads 1 --no-dashboard \
  --local-directory "${TMPDIR:-/tmp}" --death-timeout 300 &
workers=$!
trap 'kill "$workers" "$scheduler" 2>/dev/null || true' EXIT

for _ in $(seq 60); do  # until the scheduler listens
  (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null && break
  sleep 1
done
./run_all.sh --no-env --preset paper --device "$DEVICE" --engine "dask://$host:$port" --jobs 8 "$@"
