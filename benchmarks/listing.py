"""Listing and keeping pods: ours beside the official client, on the same server, in the same run, one after the other.

The server (benchmarks/pods.py) sends pods of about 10 KB; each client runs in a process of its own, whose CPU and peak
memory are taken.
"""

import asyncio
import gc
import json
import subprocess
import sys

from benchmarks import figures


def _keep_ours(port: int) -> dict[str, float]:
    from fallow.clients.kubernetes import api as kube
    from fallow.clients.kubernetes import config, follow
    from fallow.observe.cluster import pods

    async def run() -> tuple[int, float]:
        access = config.Access(server=f"http://127.0.0.1:{port}", context="bench", namespace=None)
        async with kube.Api(access, qps=1000) as api:
            copy = follow.Follower(api, kube.PODS, item=pods.PodItem, keep=pods.PodReader(frozenset()).read)
            before = figures.usage_now()
            await copy.list_once()
            return len(copy.store), before["cpu"]

    kept, before = asyncio.run(run())
    used = figures.usage_now()
    return {"kept": kept, "cpu": used["cpu"] - before, "peak_mb": used["peak_mb"]}


def _keep_official(port: int) -> dict[str, float]:
    from kubernetes import client

    settings = client.Configuration()
    settings.host = f"http://127.0.0.1:{port}"
    core = client.CoreV1Api(client.ApiClient(settings))
    kept: list[object] = []
    before = figures.usage_now()["cpu"]
    token = None
    while True:
        page = core.list_pod_for_all_namespaces(limit=500, _continue=token)
        kept += page.items
        token = page.metadata._continue if page.metadata else None
        if not token:
            break
    used = figures.usage_now()
    return {"kept": len(kept), "cpu": used["cpu"] - before, "peak_mb": used["peak_mb"]}


def _against(total: int, gpu_every: int, *clients: str) -> dict[str, dict[str, float]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pods", str(total), str(gpu_every)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        print(f"  {total} pods of {ready['bytes_per_pod']} bytes, every {gpu_every}. with a GPU", flush=True)
        return {name: figures.measured("benchmarks.listing", name, str(ready["port"])) for name in clients}
    finally:
        server.kill()
        server.wait()


def main() -> None:
    both = _against(20_000, 1, "ours", "official")
    ours, official = both["ours"], both["official"]
    assert ours["kept"] == official["kept"] == 20_000
    for name, used in both.items():
        print(f"    {name}: {used['cpu']:.2f} CPU s, {used['peak_mb']:.0f} MB peak")
    cpu, memory = official["cpu"] / ours["cpu"], official["peak_mb"] / ours["peak_mb"]
    figures.show(
        "CPU to list and keep 20,000 pods", f"{cpu:.0f} times less than the official client", "25 times", cpu >= 25
    )
    figures.show("memory for 20,000 pods", f"{memory:.0f} times less than the official client", "8 times", memory >= 8)
    many = _against(100_000, 10, "ours")["ours"]
    assert many["kept"] == 10_000
    peak = many["peak_mb"]
    figures.show(
        "100,000 pods, 10,000 with GPUs", f"{peak:.0f} MB peak, {many['cpu']:.1f} CPU s", "200 MB", peak <= 200
    )


if __name__ == "__main__":
    gc.collect()
    print(json.dumps({"ours": _keep_ours, "official": _keep_official}[sys.argv[1]](int(sys.argv[2]))))
