"""Adam as torch ships it, fused: one pass over the parameters where fairseq's own makes ten.

`optimizer._name=torch_adam`. Same settings as fairseq's `adam`; epsilon is added where Kingma & Ba (2015) and
torch add it, to the bias-corrected root (fairseq adds it before the correction).
"""

from dataclasses import dataclass, field
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II


@dataclass
class TorchAdamConfig(FairseqDataclass):
    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas, as '(0.9, 0.999)' or [0.9, 0.999]"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay (AdamW)"})
    lr: List[float] = II("optimization.lr")


@register_optimizer("torch_adam", dataclass=TorchAdamConfig)
class TorchAdam(FairseqOptimizer):
    """`torch.optim.AdamW(fused=True)` under fairseq's optimizer interface."""

    def __init__(self, cfg: TorchAdamConfig, params):
        super().__init__(cfg)
        self._optimizer = torch.optim.AdamW(params, fused=True, **self.optimizer_config)

    @property
    def optimizer_config(self):
        """Settings that override those stored in a checkpoint, so that a run can go on with another rate."""
        betas = self.cfg.adam_betas
        if isinstance(betas, str):
            betas = [float(b) for b in betas.strip("()[] ").split(",")]
        lr = self.cfg.lr
        return {
            "lr": lr if isinstance(lr, float) else lr[0],
            "betas": tuple(betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    @property
    def supports_flat_params(self):
        return True
