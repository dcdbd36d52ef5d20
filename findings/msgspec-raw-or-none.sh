#!/bin/sh
# msgspec 0.22.0: a field of type `msgspec.Raw | None` decodes null only.
#
# Expected: the undecoded value, or None if the field is absent or null, as `msgspec.Raw` alone keeps any value.
# Seen: every other value is refused ("Expected `null`, got `object`"), although the type is accepted without an error.
# So an optional part that is to be decoded later must be `msgspec.Raw = msgspec.Raw()`, compared with that default.
#
# Exits 0 while this holds, 1 once it changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check msgspec==0.22.0
"$folder/venv/bin/python" - >"$folder/seen" <<'PYTHON'
import msgspec


class Optional(msgspec.Struct):
    part: msgspec.Raw | None = None


class Plain(msgspec.Struct):
    part: msgspec.Raw = msgspec.Raw()


print("msgspec", msgspec.__version__)
for body in (b'{"part": {"a": 1}}', b'{"part": 1}', b'{"part": null}', b"{}"):
    for kind in (Optional, Plain):
        try:
            part = msgspec.json.decode(body, type=kind).part
            shown = "None" if part is None else repr(bytes(part))
        except msgspec.ValidationError as error:
            shown = f"ValidationError: {error}"
        print(f"{kind.__name__} {body.decode()}: {shown}")
PYTHON
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
msgspec 0.22.0
Optional {"part": {"a": 1}}: ValidationError: Expected `null`, got `object` - at `$.part`
Plain {"part": {"a": 1}}: b'{"a": 1}'
Optional {"part": 1}: ValidationError: Expected `null`, got `int` - at `$.part`
Plain {"part": 1}: b'1'
Optional {"part": null}: None
Plain {"part": null}: b'null'
Optional {}: None
Plain {}: b''
SEEN
