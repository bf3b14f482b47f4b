"""Named architectures of the language models for fairseq's argparse commands: `--arch fwp_lm_wt103_small_performer`.

One for each setting and row of configs/wikitext103; without a row's name it is the delta rule. Options on the command
line go first.
"""

from fairseq.models import register_model_architecture

SUM_RULE = {"update_rule": "sum", "sum_normalization": False, "attention_normalization": "output"}
DELTA_RULE = {"update_rule": "delta", "sum_normalization": True, "attention_normalization": "none"}
ROWS = {
    "transformer": {"attention": "softmax"},
    "linear": {"feature_map": "elu", **SUM_RULE},
    "delta": {"feature_map": "elu", **DELTA_RULE},
    "performer": {"feature_map": "favor", **SUM_RULE},
    "performer_delta": {"feature_map": "favor", **DELTA_RULE},
    "dpfp_sum": {"feature_map": "dpfp", "nu": 1, **SUM_RULE},
    "dpfp_delta": {"feature_map": "dpfp", "nu": 1, **DELTA_RULE},
}
WIKITEXT103 = {"layers": 16, "heads": 8, "d_ffn": 2048, "cutoffs": "20000,40000,200000"}
SETTINGS = {
    "wt103_small": {"d_model": 128, **WIKITEXT103},
    "wt103_medium": {"d_model": 256, **WIKITEXT103},
    "mini": {"d_model": 64, "layers": 3, "heads": 4, "d_ffn": 256, "cutoffs": ""},
}


def register(name, parts, model="fwp_lm"):
    @register_model_architecture(model, name)
    def architecture(args):
        for field, value in parts.items():
            setattr(args, field, getattr(args, field, value))


for setting, sizes in SETTINGS.items():
    register(f"fwp_lm_{setting}", {**sizes, **ROWS["delta"]})
    for row, parts in ROWS.items():
        register(f"fwp_lm_{setting}_{row}", {**sizes, **parts})
# with as much memory as a segment of the setting has tokens
register(
    "fwp_transformer_xl_wt103_medium",
    {**SETTINGS["wt103_medium"], "mem_len": 384, "clamp_len_eval": 384},
    model="fwp_transformer_xl",
)
