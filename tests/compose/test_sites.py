"""The subject mapping of docs/operations.md: clients know one prefix, a site has another."""

import json
import re
from pathlib import Path

from pipeline.bus import Bus, BusSettings
from pipeline.bus.topology import ensure_topology
from pipeline.nats_server import CONFIG_FILE, NatsServer
from tests.compose.files import ROOT
from tests.waiting import eventually


def documented_mapping() -> str:
    """As a server that belongs to no cluster takes it: the site is `ams`."""
    text = (ROOT / "docs" / "operations.md").read_text()
    (mapping,) = re.findall(r"^```\n(mappings = \{.*?^\})\n```$", text, re.M | re.S)
    mapping = re.sub(r'^.*cluster: "fra".*\n', "", mapping, flags=re.M)
    return re.sub(r', cluster: "ams"', "", mapping)


async def test_a_site_is_reached_by_the_common_subjects(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    (tmp_path / "base.conf").write_text(CONFIG_FILE.read_text())
    config.write_text(f'include "base.conf"\n{documented_mapping()}\n')
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    site = await Bus.connect(BusSettings(url=server.url, prefix="ams"), name="site")
    client = await Bus.connect(BusSettings(url=server.url), name="client")
    try:
        await ensure_topology(site)
        body = json.dumps({"id": "r1", "prompt": "Why?"}).encode()
        accepted = await client.request("astrolabe.request.default.default", body, timeout_s=5)
        assert json.loads(accepted.data)["stream"] == "AMS_REQUESTS"

        heard: list[bytes] = []
        await client.subscribe("astrolabe.output.default.r1", lambda m: heard.append(m.data))
        await client.flush()
        await site.publish(site.subjects.output("default", "r1"), b"token")
        await eventually(lambda: heard == [b"token"], what="the token")
    finally:
        await client.close()
        await site.close()
        server.kill()
