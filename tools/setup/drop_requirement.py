"""Takes a requirement out of a wheel. usage: drop_requirement.py WHEEL PROJECT"""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path


def main(wheel: Path, project: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.infolist()}
    metadata = next(info for info in files if info.filename.endswith(".dist-info/METADATA"))
    record = next(info for info in files if info.filename.endswith(".dist-info/RECORD"))
    files[metadata], found = re.subn(rf"Requires-Dist: {project}\b.*\n".encode(), b"", files[metadata])
    if found != 1:
        raise SystemExit(f"{wheel.name} requires {project} {found} times, expected once")
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[metadata]).digest()).rstrip(b"=")
    line = b"%s,sha256=%s,%d\n" % (metadata.filename.encode(), digest, len(files[metadata]))
    files[record] = re.sub(re.escape(metadata.filename).encode() + rb",.*\n", line, files[record])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in files.items():
            archive.writestr(info, content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
