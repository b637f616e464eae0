"""Text and token ids: the tokenizer of a model folder, its chat template, and text out of a stream of ids."""

from slipstream.text.detokenizer import Detokenizer
from slipstream.text.tokenizer import Tokenizer, check_vocabularies, load_tokenizer

__all__ = ["Detokenizer", "Tokenizer", "check_vocabularies", "load_tokenizer"]
