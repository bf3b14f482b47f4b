"""Translation (section 6.2) on fairseq's own task, with every sentence counted and divergence as an outcome.

`fairseq-hydra-train --config-dir configs/wmt14_en_de --config-name base row=linear task.data=data/wmt14_en_de/data-bin`.
Translations are made by `fairseq-generate` with `--task fwp_translation`. How the training itself went stands in
`training.json` beside the checkpoints.
"""

import os
from dataclasses import dataclass

from fairseq.data import data_utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fwp_fairseq.data.token_stream import DataFolderError
from fwp_fairseq.tasks.plain_errors import in_plain_words
from fwp_fairseq.tasks.recorded_training import (
    RecordedTraining,
    RecordedTrainingConfig,
    begin_recorded_training,
    dictionary_digest,
)


@dataclass
class FastWeightTranslationConfig(RecordedTrainingConfig, TranslationConfig):
    pass


@register_task("fwp_translation", dataclass=FastWeightTranslationConfig)
class FastWeightTranslationTask(RecordedTraining, TranslationTask):
    """Checks that validation saw every sentence and that checkpoints meet the dictionaries they were trained with."""

    counted = "nsentences"

    @classmethod
    @in_plain_words
    def setup_task(cls, cfg, **kwargs):
        check_data_folder(cfg)
        begin_recorded_training(cfg)
        return super().setup_task(cfg, **kwargs)

    @property
    def dictionaries(self):
        return self.src_dict, self.tgt_dict

    def get_batch_iterator(self, dataset, required_batch_size_multiple=1, **options):
        """As fairseq's. Of what is not trained on no sentence may be left out, so it is never cut to whole multiples."""
        if dataset is not self.datasets.get(self.cfg.train_subset):
            required_batch_size_multiple = 1
            self.begin_validation(len(dataset))
        return super().get_batch_iterator(
            dataset, required_batch_size_multiple=required_batch_size_multiple, **options
        )

    def build_generator(self, models, args, **options):
        """As fairseq's; `ValueError` where alignments are asked for that linear attention does not have."""
        if getattr(args, "print_alignment", None) and any(model.cfg.parts.cross_attention == "linear" for model in models):
            raise ValueError("generation.print_alignment: cross_attention=linear forms no weights to align by; leave it out")
        return super().build_generator(models, args, **options)

    # fairseq saves these with the model too, and hands them back ahead of building it for generation.

    def state_dict(self):
        return {"dictionary": dictionary_digest(*self.dictionaries)}

    def load_state_dict(self, state):
        self.check_dictionary(state["dictionary"])


def check_data_folder(cfg) -> None:
    """`DataFolderError` unless every folder of `task.data` has the dictionaries of the two languages."""
    for folder in (cfg.data or "").split(os.pathsep):
        languages = cfg.source_lang, cfg.target_lang
        if os.path.isdir(folder) and None in languages:
            languages = data_utils.infer_language_pair(folder)
        needed = [f"dict.{language or 'LANGUAGE'}.txt" for language in languages]
        missing = [name for name in needed if not os.path.isfile(os.path.join(folder, name))]
        if missing:
            raise DataFolderError(
                f"task.data={cfg.data}: no {missing[0]} there; give a data-bin folder made by a script of data_prep/, "
                "and its languages as task.source_lang and task.target_lang"
            )
