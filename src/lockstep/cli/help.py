"""The form of the help: whole sentences in lists of commands, and examples at the end of each command's help."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, final

import typer
from typer.core import TyperCommand, TyperGroup

from lockstep.cli.examples import EXAMPLES

_LONGEST_TEXT: Final = 1000


@final
class _TextOrDefault:
    """Converts the value of a parameter as Typer does, but leaves texts and defaults as they are.

    Typer imports Pydantic for each value that it converts. That takes longer than asking the service, and most values
    are texts, or defaults, which have their types already.

    Args:
        parameter: Typer's parameter.
    """

    def __init__(self, parameter: Any) -> None:
        self._convert = parameter.get_runtime_param
        self._is_text = parameter.type_descriptor.annotation is str

    def itself(self) -> Self:
        """Returns this converter, in place of the one that Typer would make."""
        return self

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Returns the converted value; raises Typer's error for wrong usage if it is not valid."""
        is_default = ctx.get_parameter_source(param.name).name == "DEFAULT"
        is_list = param.multiple or param.nargs == -1
        if not is_list and (is_default or self._is_text):
            return value
        if is_list and not value:
            return ()
        return self._convert().coerce(value, param=param, ctx=ctx)


def _converting_late(parameters: list[Any]) -> list[Any]:
    """Makes Typer's parameters convert their values only where they must, and returns them."""
    for parameter in parameters:
        is_done = "get_runtime_param" in vars(parameter)
        if not is_done and hasattr(parameter, "get_runtime_param"):  # before Typer 0.29 nothing imports Pydantic
            vars(parameter)["get_runtime_param"] = _TextOrDefault(parameter).itself
    return parameters


@final
class Command(TyperCommand):
    """A command whose help ends with examples: its epilog, each line of which is shown as it is, to be copied."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters."""
        return _converting_late(super().get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes the examples."""
        if self.epilog:
            title, *examples = [line.strip() for line in self.epilog.splitlines() if line.strip()]
            with formatter.section(title.removesuffix(":")):
                for example in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class AbstractGroup(TyperGroup):
    """A group whose help shows the whole first sentence of each command, below titles."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters."""
        return _converting_late(super().get_params(ctx))

    @abstractmethod
    def sections(self) -> Mapping[str, Sequence[str]]:
        """Returns the names of the commands below each title."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands."""
        width = max(len(name) for name in self.commands)
        for title, names in self.sections().items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(_LONGEST_TEXT))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@final
class Group(AbstractGroup):
    """A group whose commands stand below one title."""

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Returns all commands."""
        return {"Commands": list(self.commands)}


@final
class App(typer.Typer):
    """A Typer application whose commands show examples in their help.

    Args:
        text: what its help says of the group.
        name: the name of the group; empty for the command line itself.
        cls: the class of the group.
        **options: further options of Typer.
    """

    def __init__(self, text: str, *, name: str = "", cls: type[AbstractGroup] = Group, **options: Any) -> None:
        super().__init__(cls=cls, help=text, no_args_is_help=True, rich_markup_mode=None, **options)
        self._prefix = f"{name} " if name else ""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Registers a command; see `typer.Typer.command`."""
        lines = EXAMPLES[f"{self._prefix}{name}"]
        # Indented lines with empty ones between them are code in Markdown, as which the reference is written.
        options = {"cls": Command, "epilog": "\n\n".join(("Examples:", *(f"    {line}" for line in lines))), **options}
        return super().command(name, **options)

    def list_command(self, name: str, sentence: str) -> None:
        """Adds a command that is only listed, with the first sentence of its help, and cannot be run."""

        def listed() -> None:
            raise AssertionError(f"the command {name} was not loaded")

        super().command(name, help=sentence)(listed)
