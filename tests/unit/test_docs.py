"""The generated reference is what the code says now."""

from slipstream.cli.docs import PAGE, reference


def test_reference_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_reference_names_every_plug_in_and_option() -> None:
    page = reference()
    for words in ("`draft_model:PATH`", "`coupled`", "`hf`", "`smollm2-135m-instruct`", "--repetition-penalty"):
        assert words in page
