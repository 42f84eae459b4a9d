"""What is wrong with an address or a form of the page, said in the language of the page."""

from __future__ import annotations

from schedulemesh.errors import InvalidRequestError
from schedulemesh.server.page.texts import TEXTS


class InvalidEntryError(InvalidRequestError):
    """An address or a form of the page asks for what cannot be; nothing was changed."""

    def __init__(self, key: str, **parameters: object) -> None:
        """``key``: of the text that says so, with these parameters."""
        super().__init__(TEXTS[key][0].format_map(parameters))
        self.key, self.parameters = key, parameters
