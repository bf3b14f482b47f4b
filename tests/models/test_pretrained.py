"""`from_pretrained` of every model: text as it is written goes in and comes out."""

import random
import re
import shutil

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

from fwp_fairseq.models.language_model import FastWeightLanguageModel
from fwp_fairseq.models.transformer_xl import TransformerXL
from fwp_fairseq.models.translation import FastWeightTranslationModel
from fwp_fairseq.moses import Moses, join_subwords
from tests.conftest import STREAMING
from tests.tasks.test_translation import TINY, generate

ENGLISH, GERMAN = "cats dogs (all) don't %(run)s".split(), "Katzen Hunde (alle) nicht %(run)s".split()
PROTECTED = re.compile(r"%\(\w+\)s")


def pieces_of(lines, path):
    with path.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=writer, model_type="bpe", vocab_size=60, bos_id=-1, eos_id=-1,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def write_split(folder, name, processor, dictionary, lines):
    builder = make_builder(f"{folder}/{name}.bin", impl="mmap", vocab_size=len(dictionary))
    for line in lines:
        pieces = processor.encode(line, out_type=str)
        builder.add_item(torch.tensor([*map(dictionary.index, pieces), dictionary.eos()]))
    builder.finalize(f"{folder}/{name}.idx")


def dictionary_of(processor):
    dictionary = Dictionary()
    for number in range(1, processor.get_piece_size()):  # 0 is <unk>
        dictionary.add_symbol(processor.id_to_piece(number))
    return dictionary


@pytest.fixture(scope="module")
def translation(train, tmp_path_factory):
    """A model that has seen some sentences, its data folder, and the English of its test set as it was written."""
    folder, draw = tmp_path_factory.mktemp("translation"), random.Random(1)
    data = folder / "data-bin"
    data.mkdir()
    texts = {"en": {}, "de": {}}
    for split, count in {"train": 200, "valid": 10, "test": 7}.items():
        sentences = [[draw.randrange(5) for _ in range(draw.randint(1, 4))] for _ in range(count)]
        for language, words in (("en", ENGLISH), ("de", GERMAN)):
            texts[language][split] = [" ".join(words[i] for i in sentence) + "." for sentence in sentences]
    tokens = {
        language: {split: [*map(Moses(language, PROTECTED).tokens, lines)] for split, lines in splits.items()}
        for language, splits in texts.items()
    }
    processor = pieces_of(tokens["en"]["train"] + tokens["de"]["train"], data / "sentencepiece.model")
    (data / "protected.regex").write_text(PROTECTED.pattern)
    dictionary = dictionary_of(processor)
    for language, splits in tokens.items():
        dictionary.save(str(data / f"dict.{language}.txt"))
        for split, lines in splits.items():
            write_split(data, f"{split}.en-de.{language}", processor, dictionary, lines)
    languages = ["task.source_lang=en", "task.target_lang=de", f"task.data='{data}'", "optimization.max_update=40"]
    arguments = [*TINY, *languages, f"checkpoint.save_dir='{folder}/run'"]
    assert train("reordering", *arguments, experiment="wmt14_en_de") == 0
    return folder / "run", data, texts["en"]["test"]


def test_a_translation_model_translates_text_as_it_is_written(translation):
    run, data, sentences = translation
    model = FastWeightTranslationModel.from_pretrained(run, data_name_or_path=data)
    ours = model.translate(sentences, beam=4)
    theirs = generate(data, run / "checkpoint_best.pt", "--beam", "4", "--source-lang", "en", "--target-lang", "de")
    german = Moses("de")
    assert ours == [german.text(join_subwords(theirs[number][1])) for number in range(len(sentences))]
    assert len(set(ours)) > 1


def test_a_missing_checkpoint_or_data_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint .*run/checkpoint_best.pt"):
        FastWeightLanguageModel.from_pretrained(tmp_path / "run")
    (tmp_path / "best.pt").touch()
    with pytest.raises(FileNotFoundError, match="data_name_or_path: .*data-bin"):
        FastWeightLanguageModel.from_pretrained(tmp_path, "best.pt", tmp_path / "data-bin")


@pytest.mark.parametrize("kind", ["fast_weights", "transformer_xl"])
def test_a_language_model_scores_and_goes_on_with_a_text(kind, train_lm, streaming_lm, lm_data, tmp_path):
    run, cls = streaming_lm.save_dir, FastWeightLanguageModel
    if kind == "transformer_xl":
        run, cls = tmp_path / "run", TransformerXL
        few = ["recipe=authors", "row=transformer_xl", "optimization.max_update=8", "dataset.validate_interval_updates=8"]
        sizes = ["model.mem_len=8", "model.mem_len_eval=8"]
        assert train_lm(run, *few, *sizes, "task.carry_state=true", STREAMING[-1]) == 0
    model = cls.from_pretrained(run, "checkpoint_best.pt", lm_data)
    assert model.sample("w3 w22", beam=1, max_len_b=5).startswith("w3 w22")
    symbols = model.encode("w3 w22 w9")[:3]
    with torch.no_grad():
        out = model.models[0](torch.cat((torch.tensor([2]), symbols[:-1]))[None])  # after an end of line
    expected = model.models[0].get_normalized_probs(out, log_probs=True)[0, range(3), symbols]
    torch.testing.assert_close(model.score("w3 w22 w9")["positional_scores"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("trained", ["trained_lm", "streaming_lm"])
def test_sentences_score_the_same_together_and_alone(trained, request):
    run = request.getfixturevalue(trained)
    model = FastWeightLanguageModel.from_pretrained(run.save_dir, "checkpoint_best.pt", run.data)
    sentences = ["w1 w2 w3", "w1 w2 w3 w4 w5 w6 w7", "w9"]
    for sentence, together in zip(sentences, model.score(sentences)):
        torch.testing.assert_close(
            model.score(sentence)["positional_scores"], together["positional_scores"], atol=1e-5, rtol=1e-5
        )


def test_subwords_are_found_beside_the_data(streaming_lm, tmp_path):
    """The pieces are those of the words "w1", "w2" and so on, so that the model's dictionary has them."""
    data = tmp_path / "data-bin"
    shutil.copytree(streaming_lm.data, data)
    (tmp_path / "pieces").mkdir()
    lines = [" ".join(f"w{number}" for number in range(30))] * 10
    processor = pieces_of(lines, tmp_path / "pieces" / "sentencepiece.model")
    model = FastWeightLanguageModel.from_pretrained(streaming_lm.save_dir, "checkpoint_best.pt", data)
    assert model.bpe.encode("w3 w22") == " ".join(processor.encode("w3 w22", out_type=str))
    words = FastWeightLanguageModel.from_pretrained(streaming_lm.save_dir, "checkpoint_best.pt", data, bpe=None)
    assert words.bpe is None and words.encode("w3 w22").tolist() == [words.tgt_dict.index("w3"), words.tgt_dict.index("w22"), 2]
