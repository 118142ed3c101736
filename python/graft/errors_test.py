from __future__ import annotations

import pytest

from graft.errors import ExportError, InvalidArgument, raised_by


def test_export_errors_name_the_call():
    with pytest.raises(ExportError) as found, raised_by("export_llm", lambda: "; advice"):
        raise ExportError("expected 'export_llm: x', found none")
    assert str(found.value) == "export_llm: expected 'export_llm: x', found none; advice"
    assert str(found.value.__cause__) == "expected 'export_llm: x', found none"


def test_other_errors_stay_as_they_are():
    with pytest.raises(InvalidArgument, match="^device$"), raised_by("export"):
        raise InvalidArgument("device")
