"""What a token leaves in the cache of multi-head latent attention."""

import torch
from torch import Tensor

from outrider.kernels.interface import LatentNorm, Place
from outrider.kernels.torch.rms_norm import rms_norm
from outrider.kernels.torch.rotate import rotate
from outrider.model.kv_cache import write_tokens


def write_latent(row: Tensor, query: Tensor, norm: LatentNorm, place: Place) -> Tensor:
    """Write rows [T, C + P], latents normalised and keys turned; returns the queries [T, H, P] turned."""
    latent, key = row.tensor_split([len(norm.weight)], dim=1)
    # The one key is turned as if it were another head of the query.
    turned = rotate(torch.cat([query, key[:, None]], dim=1), place.angles)
    latent = rms_norm(latent, norm.weight, norm.epsilon)
    write_tokens(place.cache, place.slots, torch.cat([latent, turned[:, -1]], dim=1))
    return turned[:, :-1]
