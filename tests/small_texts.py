"""A tiny transformer and packages that need no network, in place of those of the tutorial."""

import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SECTIONS = [
    *("utils", "net", "science", "admin", "games"),
    *("sound", "text", "graphics", "web", "mail"),
    *("fonts", "perl", "haskell", "localization"),
]


def model():
    """Return a folder with a tiny BERT and a tokenizer that knows the words of `packages`."""
    folder = tempfile.mkdtemp()
    words = ["[PAD]", "[UNK]", "a", "program", "for", *SECTIONS, *map(str, range(30))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def packages():
    """Return what `apt-cache dumpavail` prints, of 30 packages in each section."""
    return "\n\n".join(
        f"Package: {section}-{i}\nDescription: a program for {section} {i}\nSection: {section}"
        for section in SECTIONS
        for i in range(30)
    )
