"""Asks the process that parses and compares schemas (worker.py); what goes wrong there is the schema's fault."""

from __future__ import annotations

from typing import Any

from mainstem.broker.line_process import Ended, Late, LineProcess
from mainstem.broker.schemas import faults

ANSWER_S_MAX = 20.0
INSTALL = "pip install 'mainstem[schemas]'"


class Checker:
    def __init__(self) -> None:
        self._process = LineProcess("mainstem.broker.schemas.worker", ANSWER_S_MAX)

    async def ask(self, **asked: Any) -> dict[str, Any]:
        try:
            answer = await self._process.ask(asked)
        except Late as late:
            raise faults.invalid_schema(f"it cannot be checked: {late}") from None
        except Ended:
            raise faults.invalid_schema("the process that checks it ended: it needs too much memory") from None
        if "invalid" in answer:
            raise faults.invalid_schema(answer["invalid"])
        if "missing" in answer:
            raise faults.not_checked(answer["missing"], fix=INSTALL)
        return answer

    async def close(self) -> None:
        await self._process.close()
