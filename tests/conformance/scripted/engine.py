"""python -m tests.conformance.scripted.engine: the fake engine, answering by the scripts."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from tokenizers import Tokenizer

from engine.fake import arguments, serve
from engine.protocol import GenerateRequest
from tests.conformance.scripted.model import END_OF_TURN, TURN
from tests.conformance.scripted.scripts import scripted_text_after

MAX_REMEMBERED = 64


class Script:
    """The scripted tokens after each prompt, and those that end the turn."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.end: int = self._tokenizer.token_to_id(END_OF_TURN)
        self._said: OrderedDict[str, list[int]] = OrderedDict()

    def token(self, request: GenerateRequest, position: int, index: int) -> int:
        """Return the completion token at a position; all choices are the same."""
        token_ids = self._said.get(request.request_id)
        if token_ids is None:
            prompt = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
            token_ids = self._tokenizer.encode(scripted_text_after(prompt, TURN), add_special_tokens=False).ids
            self._said[request.request_id] = token_ids
            while len(self._said) > MAX_REMEMBERED:
                self._said.popitem(last=False)
        return token_ids[position] if position < len(token_ids) else self.end


def main() -> None:
    args = arguments().parse_args()
    script = Script(Path(args.model_dir))
    serve(args, script.token, end_id=script.end)


if __name__ == "__main__":
    main()
