"""`robustvit playground`."""

import threading
from typing import Annotated

import typer

from robustvit.cli.options import optional
from robustvit.core.progress import say


def playground(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Run folders, checkpoints, timm or hub names, module:function; default: every model of the zoo.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[int | None, optional(help="Side that pictures are brought to; default: each model's.")] = None,
    port: Annotated[int, typer.Option(help="Of the address; 0: any that is free.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Attack pictures on a page of this machine: drop one, choose a model and an eps, and watch. Ctrl-C ends it.

    Example: robustvit playground zoo:speedrun
    """
    import webbrowser

    from robustvit.core.errors import UserError, check_counts
    from robustvit.evaluation.picture_model import PictureModel
    from robustvit.models.reference import distinct_titles, resolve_model
    from robustvit.models.zoo import PREFIX, zoo_names
    from robustvit.playground.server import Playground

    check_counts(size=1 if size is None else size)
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port {port}: a number from 0 to 65535")
    names = models or [f"{PREFIX}{name}" for name in zoo_names()]
    refs = [resolve_model(name) for name in names]
    titles = names if len(set(names)) == len(names) else distinct_titles(refs)
    try:
        server = Playground([PictureModel(ref, size) for ref in refs], titles, port)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"--port {port}: can't be used ({reason}); --port 0 takes any that is free") from None
    typer.echo(server.address)
    say("Ctrl-C ends it")
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    if browser:
        webbrowser.open(server.address)
    try:
        while serving.is_alive():
            serving.join(0.5)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.stop()
        server.server_close()
