"""A command that has commands of its own, and corrects misspelt names."""

from __future__ import annotations

from collections.abc import Mapping

import click


class Group(click.Group):
    """Names of commands are also taken by their aliases."""

    aliases: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib  # noqa: PLC0415 for a mistake only

            words = [*self.list_commands(ctx), *self.aliases]
            close = difflib.get_close_matches(name[:64], words, n=1)
            meant = f'; did you mean "{close[0]}"?' if close else ""
            ctx.fail(f'unknown command "{name}" for "{ctx.command_path}"{meant}')
        return super().resolve_command(ctx, args)
