"""What `fallow doctor` asks an API server: of what answers, and is none, there is one sentence."""

import json

import pytest
from aiohttp import web

from fallow.clients import errors
from fallow.model.seen import ABSENT
from fallow.wiring import checking


async def serve(tmp_path, body: str):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body) if request.path == "/version" else web.Response(status=404, text="{}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    return runner, str(tmp_path / "kubeconfig")


async def test_a_page_of_login_is_no_api_server(tmp_path):
    runner, kubeconfig = await serve(tmp_path, "<html>log in</html>")
    with pytest.raises(errors.BadAnswer, match="no API server of Kubernetes"):
        await checking.gather(kubeconfig, None)
    await runner.cleanup()


async def test_kinds_that_nobody_serves_are_absent(tmp_path):
    runner, kubeconfig = await serve(tmp_path, '{"gitVersion": "v1.33.0"}')
    found = await checking.gather(kubeconfig, None)
    assert (found.version, found.kinds) == ("v1.33.0", ABSENT)
    await runner.cleanup()


async def test_who_does_not_answer_is_told_what_helps_once(tmp_path):
    runner, kubeconfig = await serve(tmp_path, "")
    await runner.cleanup()
    with pytest.raises(errors.Unreachable) as refused:
        await checking.gather(kubeconfig, None)
    assert str(refused.value).count("is the cluster up") == 1
