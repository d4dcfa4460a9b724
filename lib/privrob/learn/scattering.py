r"""The scattering transform of images, to second order (Mallat 2012; Bruna & Mallat 2013).

With oriented wavelets :math:`\psi_{j,\theta}` at scales :math:`2^j`, :math:`0 \le j < J`, and a low pass
:math:`\phi_J` the coefficients are

.. math:: x * \phi_J, \qquad |x * \psi_{j_1,\theta_1}| * \phi_J, \qquad
          \big|\,|x * \psi_{j_1,\theta_1}| * \psi_{j_2,\theta_2}\big| * \phi_J \quad (j_1 < j_2),

sampled every :math:`2^J` pixels: :math:`1 + LJ + L^2 J(J-1)/2` images for L angles. Convolutions are products of
Fourier transforms on the image mirrored at its edges; after each scale the signal is kept only as dense as its band needs.
"""

from __future__ import annotations

import math

import torch

from privrob import checks


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
        low = _gaussian(self.padded, 0.8 * 2 ** (scales - 1))
        self.low = [_coarser(low, j).to(device) for j in range(scales)]
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
        spectrum = torch.fft.fft2(self._mirrored(images.flatten(0, 1)))
        found = [self._smooth(spectrum, 0)[:, None]]
        second = []
        for j in range(self.scales):
            first = self._modulus(spectrum[:, None], j, 0)  # (n, L, ...) spectra, kept every 2^j pixels
            found.append(self._smooth(first, j))
            for later in range(j + 1, self.scales if self.order == 2 else 0):
                deeper = self._modulus(first[:, :, None], later, j)
                second.append(self._smooth(deeper, later).flatten(1, 2))
        return torch.cat([*found, *second], 1).unflatten(0, images.shape[:2]).to(images.dtype)

    def _modulus(self, spectrum, scale, density):
        """Spectrum of |signal * ψ|, sampled every 2^scale pixels."""
        product = _folded(spectrum * self.band[scale, density], 2 ** (scale - density))
        return torch.fft.fft2(torch.fft.ifft2(product).abs())

    def _smooth(self, spectrum, density):
        """Signal * φ every 2^J pixels, without the room at the edges."""
        smooth = torch.fft.ifft2(_folded(spectrum * self.low[density], self.step >> density)).real
        high, wide = self.outputs
        return smooth[..., 1 : 1 + high, 1 : 1 + wide]

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
    high, wide = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    return spectrum.unflatten(-2, (factor, high)).unflatten(-1, (factor, wide)).mean((-4, -2))


def _coarser(transform, density):
    """A filter's transform on a grid of every 2^density-th pixel: the sum over its aliases."""
    return _folded(transform, 2**density) * 4**density


def _gaussian(size, width):
    """Fourier transform of a Gaussian of that standard deviation in pixels and integral 1, periodic on the grid."""
    return _bump(size, width, 0.0, 0.0, 1.0)


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
