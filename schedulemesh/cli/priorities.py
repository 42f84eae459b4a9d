"""Priorities as options and arguments: numbers, or names of classes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from schedulemesh.domain.numbers import parse_priority
from schedulemesh.domain.priorities import CLASSES_TEXT, UnknownPriorityClassError
from schedulemesh.errors import InvalidRequestError

_HELP = f"A number, or one of the classes {CLASSES_TEXT}, or of the policy."


def priority_of(word: str | float) -> float | str:
    """The priority that a word of a command line means; a word that may be an own class of the policy, which
    the scheduler is asked for, as it is. Raises typer.BadParameter.
    """
    try:
        return parse_priority(_number(word))
    except UnknownPriorityClassError:
        return word
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from None


def _number(word: str | float) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word


PriorityOption = Annotated[
    Any, typer.Option(parser=priority_of, metavar="NUMBER|CLASS", help=f"Its priority. {_HELP}")
]
PriorityArgument = Annotated[
    Any,
    typer.Argument(parser=priority_of, metavar="NUMBER|CLASS", help=f"Its new priority. {_HELP}"),
]
MaxPriorityOption = Annotated[
    Any,
    typer.Option(
        parser=priority_of,
        metavar="NUMBER|CLASS",
        help=f"Of a submitter: the highest priority of its tasks. {_HELP}",
    ),
]
