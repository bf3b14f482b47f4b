"""Named architectures of the translation models for fairseq's argparse commands: `--arch fwp_translation_base_linear`.

One for each setting and row of configs/wmt14_en_de. Options on the command line go first.
"""

from fairseq.models import register_model_architecture

SUM_RULE = {"update_rule": "sum", "sum_normalization": False, "attention_normalization": "output"}
DELTA_RULE = {"update_rule": "delta", "sum_normalization": True, "attention_normalization": "none"}
ROWS = {
    "transformer": {name: "softmax" for name in ("encoder_attention", "decoder_attention", "cross_attention")},
    "linear": {"feature_map": "elu", **SUM_RULE},
    "performer_64": {"feature_map": "favor", "m": 32, **SUM_RULE},
    "performer_256": {"feature_map": "favor", "m": 128, **SUM_RULE},
    "performer_512": {"feature_map": "favor", "m": 256, **SUM_RULE},
    "dpfp_256": {"feature_map": "dpfp", "nu": 2, **SUM_RULE},
    "dpfp_512": {"feature_map": "dpfp", "nu": 4, **SUM_RULE},
    "elu_delta": {"feature_map": "elu", **DELTA_RULE},
    "dpfp_256_delta": {"feature_map": "dpfp", "nu": 2, **DELTA_RULE},
}
SETTINGS = {
    "base": {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "heads": 8, "d_ffn": 2048},
    "mini": {"d_model": 128, "encoder_layers": 3, "decoder_layers": 3, "heads": 2, "d_ffn": 512},
}


def register(name, parts):
    @register_model_architecture("fwp_translation", name)
    def architecture(args):
        for field, value in parts.items():
            setattr(args, field, getattr(args, field, value))


for setting, sizes in SETTINGS.items():
    for row, parts in ROWS.items():
        register(f"fwp_translation_{setting}_{row}", {**sizes, **parts})
