"""Run by itself: says in JSON what a node of real cards would be, read through the library that is in the way."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from faults.gpu import sanity
from faults.gpu.nvidia import NvidiaNode
from faults.gpu.refused import Refused
from faults.gpu.sanity import Allowed


def main() -> None:
    with NvidiaNode.open() as node:
        before = sanity.take(node)
        time.sleep(0.3)
        after = sanity.take(node)
        told = {
            "profile": asdict(node.profile),
            "memory": [asdict(each) for each in after.memory],
            "cards": [asdict(each) for each in after.cards],
            "links": {name: asdict(link) for name, link in after.links.items()},
            "route": node.route(0, 1),
            "tenants": sorted(node.tenants()),
            "findings": [
                str(each) for each in sanity.findings([before, after], Allowed(stale_s=0.5, late_s=0.5))
            ],
        }
        try:
            with node.neighbour("keep", card=0, levers=["POWER_CAP_W=400"]):
                told["refused"] = ""
        except Refused as refused:
            told["refused"] = str(refused)
        sys.stdout.write(("ready" if "wait" in sys.argv else json.dumps(told)) + "\n")
        sys.stdout.flush()
        if "wait" in sys.argv:  # somebody reports something now
            sys.stdin.readline()
            time.sleep(0.1)
            sys.stdout.write(json.dumps([asdict(each) for each in node.events()]))


if __name__ == "__main__":
    main()
