r"""The scattering transform of images, to second order (Mallat 2012; Bruna & Mallat 2013).

With oriented wavelets :math:`\psi_{j,\theta}` at scales :math:`2^j`, :math:`0 \le j < J`, and a low pass
:math:`\phi_J` the coefficients are

.. math:: x * \phi_J, \qquad |x * \psi_{j_1,\theta_1}| * \phi_J, \qquad
          \big|\,|x * \psi_{j_1,\theta_1}| * \psi_{j_2,\theta_2}\big| * \phi_J \quad (j_1 < j_2),

sampled every :math:`2^J` pixels: :math:`1 + LJ + L^2 J(J-1)/2` images for L angles. Convolutions are products of
Fourier transforms on the image mirrored at its edges; after each scale the signal is kept only as dense as its band
needs.

Source: Mallat 2012; Bruna and Mallat 2013; the code is ours.
"""

from __future__ import annotations

import math

import torch

from privrob import checks

_AT_ONCE = 16  # images: what lies between must stay near the processor


class Scattering:
    """The transform for images of one size.

    Args: size — (height, width);  scales — J ≥ 1;  angles — L ≥ 1;  order — 1 or 2.
    """

    def __init__(self, size, *, scales=2, angles=8, order=2, device="cpu"):
        self.scales = checks.integer("scales", scales, low=1)
        self.angles = checks.integer("angles", angles, low=1)
        self.order = checks.integer("order", order, low=1, high=2)
        self.step = 2**scales
        if min(size) < self.step:
            raise ValueError(f"size must be at least 2^scales = {self.step} on both sides, got {tuple(size)}")
        self.size = tuple(size)
        # room of one output pixel on each side, then up to a multiple of 2^J
        self.padded = tuple(-(-(n + 2 * self.step) // self.step) * self.step for n in size)
        self.outputs = tuple(-(-n // self.step) for n in size)
        low = 0.8 * 2 ** (scales - 1)
        self.low = [  # (rows, columns) at each density: outputs × what the signal has
            tuple(
                _low_pass(n, low, self.step, density, m).to(device)
                for n, m in zip(self.padded, self.outputs, strict=True)
            )
            for density in range(scales)
        ]
        self.band = {}  # (scale, density the signal has): filters of all angles, (L, height, width)
        for j in range(scales):
            filters = torch.stack(
                [
                    _morlet(self.padded, 0.8 * 2**j, 0.75 * math.pi / 2**j, math.pi * k / angles, 4 / angles)
                    for k in range(angles)
                ]
            )
            for density in range(j + 1):
                self.band[j, density] = _coarser(filters, density).to(device)

    @property
    def paths(self):
        """How many coefficients an output pixel has."""
        pairs = self.scales * (self.scales - 1) // 2 if self.order == 2 else 0
        return 1 + self.angles * self.scales + self.angles**2 * pairs

    def __call__(self, images):
        """(n, channels, height, width) to (n, channels, paths, height / 2^J, width / 2^J)."""
        if tuple(images.shape[2:]) != self.size:
            raise ValueError(f"images must be of size {self.size}, got {tuple(images.shape[2:])}")
        parts = [self._paths(part) for part in images.flatten(0, 1).split(_AT_ONCE)]
        return torch.cat(parts).unflatten(0, images.shape[:2]).to(images.dtype)

    def _paths(self, images):
        images = self._mirrored(images)
        spectrum = torch.fft.fft2(images)[:, None]
        found, second = [self._smooth(images, 0)[:, None]], []
        for j in range(self.scales):
            first = self._modulus(spectrum, j, 0)
            found.append(self._smooth(first, j))
            deeper = range(j + 1, self.scales if self.order == 2 else 0)
            inner = torch.fft.fft2(first)[:, :, None] if deeper else None
            second += [self._smooth(self._modulus(inner, later, j), later).flatten(1, 2) for later in deeper]
        return torch.cat([*found, *second], 1)

    def _modulus(self, spectrum, scale, density):
        """|signal * ψ| every 2^scale pixels, of a spectrum of the signal every 2^density pixels."""
        return torch.fft.ifft2(_folded(spectrum * self.band[scale, density], 2 ** (scale - density))).abs()

    def _smooth(self, signal, density):
        """Signal * φ every 2^J pixels, without the room at the edges: φ is a product, so two products of matrices."""
        rows, columns = self.low[density]
        return rows @ (signal.to(rows.dtype) @ columns.t())

    def _mirrored(self, images):
        (height, width), (high, wide) = self.size, self.padded
        rows, columns = (_mirror(n, self.step, m) for n, m in ((height, high), (width, wide)))
        return images[:, rows.to(images.device)][:, :, columns.to(images.device)]


def _mirror(size, before, total):
    """Indices of 0 … size−1 continued by reflection, ``before`` of them in front."""
    if size == 1:
        return torch.zeros(total, dtype=torch.int64)
    place = (torch.arange(total) - before) % (2 * (size - 1))
    return torch.where(place < size, place, 2 * (size - 1) - place)


def _folded(spectrum, factor):
    """The spectrum of the signal sampled every ``factor`` pixels: the mean over its aliases."""
    if factor == 1:
        return spectrum
    for axis in (-2, -1):  # sums of slices: several times faster than a mean over two axes
        parts = spectrum.chunk(factor, axis)
        spectrum = sum(parts[1:], parts[0])
    return spectrum / factor**2


def _coarser(transform, density):
    """A filter's transform on a grid of every 2^density-th pixel: the sum over its aliases."""
    return _folded(transform, 2**density) * 4**density


def _low_pass(size, width, step, density, outputs):
    """Matrix of the Gaussian low pass along a side: from every 2^density-th pixel to every step-th but the first."""
    frequencies = 2 * math.pi * torch.fft.fftfreq(size, dtype=torch.float64)
    transform = sum(torch.exp(-((width * (frequencies + 2 * math.pi * a)) ** 2) / 2) for a in range(-2, 3))
    kernel = torch.fft.ifft(transform.unflatten(0, (2**density, -1)).sum(0)).real
    places = (torch.arange(1, outputs + 1) * step // 2**density)[:, None] - torch.arange(len(kernel))
    return kernel[places % len(kernel)].float()


def _morlet(size, width, frequency, angle, slant):
    """Fourier transform of a Gabor filter less the Gaussian that takes its mean away."""
    wave, envelope = _bump(size, width, frequency, angle, slant), _bump(size, width, 0.0, angle, slant)
    return wave - envelope * (wave[0, 0] / envelope[0, 0])


def _bump(size, width, frequency, angle, slant):
    r"""Of the Gaussian of covariance R diag(w², (w/s)²) Rᵀ times a wave: a Gaussian around that frequency, folded."""
    axes = [2 * math.pi * torch.fft.fftfreq(n, dtype=torch.float64) for n in size]
    down, right = torch.meshgrid(*axes, indexing="ij")
    total = torch.zeros(size, dtype=torch.float64)
    for a in range(-2, 3):
        for b in range(-2, 3):
            y, x = down + 2 * math.pi * a, right + 2 * math.pi * b
            along = x * math.cos(angle) + y * math.sin(angle) - frequency
            across = y * math.cos(angle) - x * math.sin(angle)
            total += torch.exp(-(width**2) * (along**2 + (across / slant) ** 2) / 2)
    return total.float()
