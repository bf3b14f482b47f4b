"""`from_pretrained`, as every fairseq model has it, which also finds how the text of the data folder was made."""

import os
from pathlib import Path

from fwp_fairseq.moses import PROTECTED
from fwp_fairseq.prompt_text import pieces_of


class FromDataFolder:
    """Mixed into a fairseq model, ahead of it."""

    hub_tokenizer = None  # name of a registered fairseq tokenizer that comes ahead of the subwords

    @classmethod
    def from_pretrained(cls, folder, checkpoint_file="checkpoint_best.pt", data_name_or_path=".", **overrides):
        """The model of `folder/checkpoint_file` in fairseq's `GeneratorHubInterface`: `score`, `sample`, `translate`.

        data_name_or_path: the data folder, below `folder` where it begins with a dot, as in fairseq; where it, or what
        is beside it, has a `sentencepiece.model`, text is taken as it is written and comes back so. overrides: settings
        of the checkpoint to replace, `bpe=None` say. `FileNotFoundError` where there is no checkpoint or data folder.
        """
        data = str(data_name_or_path)
        data_folder = Path(folder, data) if data.startswith(".") else Path(data)
        for checkpoint in str(checkpoint_file).split(os.pathsep):  # several are an ensemble
            if not Path(folder, checkpoint).is_file():
                raise FileNotFoundError(f"there is no checkpoint {Path(folder, checkpoint)}")
        if not data_folder.is_dir():
            raise FileNotFoundError(f"data_name_or_path: there is no folder {data_folder}")
        pieces = pieces_of(data_folder)
        if pieces is not None:
            found = {"bpe": "sentencepiece", "sentencepiece_model": str(pieces)}
            if cls.hub_tokenizer is not None:
                found["tokenizer"] = cls.hub_tokenizer
                protected = data_folder / PROTECTED
                if protected.is_file():
                    found["protected_text"] = str(protected)
            overrides = {**found, **overrides}
        return super().from_pretrained(str(folder), checkpoint_file, data, **overrides)
