"""How the page `/me` looks, and the headers of every answer under it."""

from typing import Final

from service.policy.page_frame import BASE_STYLE, headers_with

STYLE: Final = BASE_STYLE
HEADERS: Final = headers_with(STYLE)
