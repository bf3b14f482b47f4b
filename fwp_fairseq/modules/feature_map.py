"""The feature map of one attention layer, chosen by name; FAVOR+ keeps its random features here.

    @register_feature_map("softplus")
    def softplus(x):
        return torch.nn.functional.softplus(x)

makes `feature_map=softplus` work wherever the name of a feature map is asked for; docs/extending.md walks through it.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fwp_fairseq.ops import dpfp_feature_map, elu_feature_map, favor_feature_map, favor_random_matrix

FAVOR_EPS = 1e-4  # of the authors' language modelling code


class RegisteredMap(NamedTuple):
    """function: (..., d) -> (..., d_phi(d))."""

    function: Callable
    d_phi: Callable


_BUILT_IN = ("elu", "dpfp", "favor")
registered_maps: dict[str, RegisteredMap] = {}


def register_feature_map(name: str, d_phi: Callable = lambda d_head: d_head):
    """Makes `function(x)`, (..., d_head) -> (..., d_phi(d_head)), the feature map `name` of every model.

    What it gives should not be negative: the sums that keys are divided by would cross 0. Raises `ValueError` where
    the name is taken.
    """

    def register(function):
        if name in (*_BUILT_IN, *registered_maps):
            raise ValueError(f"feature_map: there is one named {name} already, choose another name")
        registered_maps[name] = RegisteredMap(function, d_phi)
        return function

    return register


class FeatureMap(nn.Module):
    """phi of linear attention: (..., d_head) -> (..., d_phi), the same for keys and queries of all heads.

    FAVOR+ draws new random features at every training forward, so keys and queries go through one call: as one
    tensor, or as several of different lengths. The last ones drawn are a buffer, part of every checkpoint, and are
    what evaluation uses.

    Args:
        name: "elu", "dpfp", "favor", or a registered one
        d_head: size of keys and queries
        nu: of dpfp, whose d_phi is 2 * d_head * nu (default 1)
        m: of favor, whose d_phi is 2 * m (default d_head / 2, so that d_phi is d_head)

    Raises `ValueError` for an unknown name and for a `nu` or `m` that does not fit.
    """

    def __init__(self, name: str, d_head: int, nu: int | None = None, m: int | None = None):
        super().__init__()
        if name not in (*_BUILT_IN, *registered_maps):
            raise ValueError(f"feature_map: got {name!r}, allowed are {', '.join((*_BUILT_IN, *registered_maps))}")
        for argument, value, owner in (("nu", nu, "dpfp"), ("m", m, "favor")):
            if value is not None and name != owner:
                raise ValueError(f"{argument}: only feature map {owner} has it, got {value} with {name}; leave it out")
            if value is not None and value < 1:
                raise ValueError(f"{argument}: must be >= 1, got {value}")
        self.name = name
        self.nu = nu or 1
        self.m = m or max(1, d_head // 2)
        if name in registered_maps:
            self.d_phi = registered_maps[name].d_phi(d_head)
        else:
            self.d_phi = {"elu": d_head, "dpfp": 2 * d_head * self.nu, "favor": 2 * self.m}[name]
        if name == "favor":
            self.register_buffer("omega", favor_random_matrix(d_head, self.m))

    def forward(self, x, *others):
        """phi(x), or with others a tuple of phi for each, all by the same random features."""
        if self.name == "favor" and self.training:
            self.omega = favor_random_matrix(*self.omega.shape, dtype=self.omega.dtype, device=self.omega.device)
        return tuple(map(self.phi, (x, *others))) if others else self.phi(x)

    def phi(self, x):
        if self.name == "elu":
            return elu_feature_map(x)
        if self.name == "dpfp":
            return dpfp_feature_map(x, self.nu)
        if self.name == "favor":
            return favor_feature_map(x, self.omega, FAVOR_EPS)
        return registered_maps[self.name].function(x)
