"""From a `schema.Shape` to Python source: message classes, and decode and encode functions of one version.

Fixed-size fields that follow each other become one `struct` call. A decode function is
`decode(b, p, e) -> (message, position)`, an encode function `encode(m, out)`; `wire` gives them their globals.
"""

from __future__ import annotations

from mainstem.protocols.kafka.schema import SCALARS, Field, Shape

_SIZES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
_EMPTY = {"string": "''", "bytes": "b''", "records": "None", "uuid": repr(bytes(16)), "bool": "False"}


def default_of(field: Field) -> str:
    """Source of a field's value when nobody says it."""
    if field.default == "null":
        return "None"
    if field.is_array:
        return "ABSENT"
    if field.is_struct:
        return "None"
    if field.default is not None:
        return {"true": "True", "false": "False"}.get(field.default) or (
            repr(field.default) if field.type == "string" else field.default
        )
    return _EMPTY.get(field.type, "0")


def message_source(shape: Shape) -> str:
    lines = _class_lines(shape.name, shape.fields)
    for name, fields in shape.structs.items():
        lines += _class_lines(name, fields)
        lines.append(f"{shape.name}.{name} = {name}")
    return "\n".join(lines)


def _class_lines(name: str, fields: list[Field]) -> list[str]:
    names = [field.name for field in fields]
    arguments = ", ".join(f"{field.name}={default_of(field)}" for field in fields)
    lines = [f"class {name}:", f"    __slots__ = {tuple(names)!r}", f"    def __init__(self, {arguments}):"]
    for field in fields:
        value = field.name
        if field.is_array and field.default != "null":
            value = f"[] if {value} is ABSENT else {value}"
        lines.append(f"        self.{field.name} = {value}")
    shown = ", ".join(f"{n}={{self.{n}!r}}" for n in names)
    lines += ["    def __repr__(self):", f"        return f'{name}({shown})'", "    def __eq__(self, other):"]
    same = " and ".join(f"self.{n} == other.{n}" for n in names)
    lines += [f"        return type(other) is type(self) and {same}", "    __hash__ = None"]
    return lines


def _scalar(field: Field) -> str | None:
    """The struct letter of a field of fixed size, or None."""
    if field.is_array:
        return None
    return "16s" if field.type == "uuid" else SCALARS.get(field.type)


class _Writer:
    """Lines of source at a depth; names made unique by a counter."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.structs: dict[str, str] = {}
        self.sink = "out"  # where encoded buffers go: the message, or a tagged field's content

    def put(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def struct(self, letters: str) -> str:
        return self.structs.setdefault(letters, f"S{len(self.structs)}")

    def present(self, fields: list[Field]) -> list[Field]:
        return [field for field in fields if self.version in field.versions and not self.is_tagged(field)]

    def tagged(self, fields: list[Field]) -> list[Field]:
        if not self.flexible:
            return []
        return [field for field in fields if self.version in field.versions and self.is_tagged(field)]

    def is_tagged(self, field: Field) -> bool:
        return field.tag is not None

    def is_nullable(self, field: Field) -> bool:
        return field.nullable is not None and self.version in field.nullable

    def source(self, head: str, method: str) -> str:
        heads = [f"{name} = Struct({'>' + letters!r}).{method}" for letters, name in self.structs.items()]
        return "\n".join([*heads, head, *self.lines])


def smallest(field: Field, version: int, *, flexible: bool) -> int:
    """The fewest bytes a field can take: what bounds an array's length by the bytes that remain."""
    letters = _scalar(field)
    if letters is not None:
        return _SIZES[letters]
    if field.is_array or field.type in ("bytes", "records"):
        return 1 if flexible else 4
    if field.is_struct:
        return 1 if field.nullable is not None else struct_smallest(field.fields, version, flexible=flexible)
    return 1 if flexible else 2


def struct_smallest(fields: list[Field], version: int, *, flexible: bool) -> int:
    sizes = [
        smallest(field, version, flexible=flexible)
        for field in fields
        if version in field.versions and field.tag is None
    ]
    return max(sum(sizes) + (1 if flexible else 0), 1)


# --- decoding ---


def decode_source(shape: Shape, version: int, *, flexible: bool) -> str:
    out = _Writer(version, flexible=flexible)
    out.put("total = 0")
    _decode_struct(out, shape.name, shape.fields, "m")
    out.put("return m, p")
    return out.source("def decode(b, p, e):", "unpack_from")


def _decode_struct(out: _Writer, class_name: str, fields: list[Field], target: str) -> None:
    out.put(f"{target} = new({class_name})")
    for field in fields:  # what this version does not carry
        if out.version not in field.versions or out.is_tagged(field):
            default = default_of(field)
            out.put(f"{target}.{field.name} = {'[]' if default == 'ABSENT' else default}")
    run: list[Field] = []
    for field in out.present(fields):
        if _scalar(field) is not None:
            run.append(field)
            continue
        _decode_run(out, run, target)
        run = []
        _decode_field(out, field, f"{target}.{field.name}")
    _decode_run(out, run, target)
    if out.flexible:
        _decode_tags(out, out.tagged(fields), target)


def _decode_run(out: _Writer, run: list[Field], target: str) -> None:
    if not run:
        return
    letters = [_scalar(field) or "" for field in run]
    targets = ", ".join(f"{target}.{field.name}" for field in run)
    reader = out.struct("".join(letters))
    out.put(f"{targets}, = {reader}(b, p)", f"p += {sum(_SIZES[letter] for letter in letters)}")


def _decode_length(out: _Writer, field: Field, *, short: bool) -> None:
    """Leaves the length in `n`, -1 for null."""
    if out.flexible:
        out.put("n = b[p]", "p += 1", "if n > 127: n, p = read_varint(b, p, n)", "n -= 1")
    else:
        out.put(f"n, = {out.struct('h' if short else 'i')}(b, p)", f"p += {2 if short else 4}")
    floor = -1 if out.is_nullable(field) else 0
    out.put(f"if n < {floor}: raise malformed('{field.name} has length %d' % n)")


def _decode_field(out: _Writer, field: Field, target: str) -> None:
    if field.is_array:
        _decode_array(out, field, target)
    elif field.is_struct:
        _decode_inner_struct(out, field, target)
    else:
        _decode_length(out, field, short=field.type == "string")
        value = {"string": "str(b[p:p + n], 'utf-8')", "bytes": "bytes(b[p:p + n])", "records": "b[p:p + n]"}[
            field.type
        ]
        out.put(f"if n > e - p: raise malformed('{field.name} of %d bytes where %d remain' % (n, e - p))")
        if out.is_nullable(field):
            out.put("if n < 0:", f"    {target} = None", "else:", f"    {target} = {value}", "    p += n")
        else:
            out.put(f"{target} = {value}", "p += n")


def _decode_inner_struct(out: _Writer, field: Field, target: str) -> None:
    inner = out.name("s")
    if not out.is_nullable(field):
        _decode_struct(out, field.type, field.fields, inner)
        out.put(f"{target} = {inner}")
        return
    out.put("n = b[p]", "p += 1", "if n > 127:", f"    {target} = None", "else:")
    out.depth += 1
    _decode_struct(out, field.type, field.fields, inner)
    out.put(f"{target} = {inner}")
    out.depth -= 1


def _decode_array(out: _Writer, field: Field, target: str) -> None:
    _decode_length(out, field, short=False)
    element = Field(field.name, field.type, False, field.versions, None, None, None, field.fields)
    size = smallest(element, out.version, flexible=out.flexible)
    out.put(
        f"if n * {size} > e - p or n > ITEMS_MAX:",
        f"    raise malformed('{field.name} of %d items where %d bytes remain' % (n, e - p))",
        "total += max(n, 0)",
        f"if total > TOTAL_MAX: raise malformed('{field.name}: more than %d items in all' % TOTAL_MAX)",
    )
    items = out.name("a")
    if out.is_nullable(field):
        out.put(f"{items} = {target} = None if n < 0 else []")
    else:
        out.put(f"{items} = {target} = []")
    letters = _scalar(element)
    if letters is not None and letters != "16s":
        out.put(
            "if n > 0:", f"    {items}.extend(Struct('>%d{letters}' % n).unpack_from(b, p))", f"    p += n * {size}"
        )
        return
    out.put("for _ in range(n):")
    out.depth += 1
    item = out.name("i")
    if field.is_struct:
        _decode_struct(out, field.type, field.fields, item)
    elif letters == "16s":
        out.put(f"{item} = bytes(b[p:p + 16])", "p += 16")
    else:
        _decode_field(out, element, item)
    out.put(f"{items}.append({item})")
    out.depth -= 1


def _decode_tags(out: _Writer, tagged: list[Field], target: str) -> None:
    out.put("n = b[p]")
    if not tagged:
        out.put("p = p + 1 if n == 0 else skip_tags(b, p, e)")
        return
    until = out.name("t")
    out.put("p += 1", "if n > 127: n, p = read_varint(b, p, n)", "for _ in range(n):")
    out.depth += 1
    out.put("p, g, n = tag_head(b, p, e)", f"{until} = p + n")
    for at, field in enumerate(tagged):
        out.put(f"{'if' if at == 0 else 'elif'} g == {field.tag}:")
        out.depth += 1
        if _scalar(field) is not None:
            _decode_run(out, [field], target)
        else:
            _decode_field(out, field, f"{target}.{field.name}")
        out.put(f"if p != {until}: raise malformed('tagged {field.name} of another size')")
        out.depth -= 1
    out.put(f"p = {until}")
    out.depth -= 1


# --- encoding ---


def encode_source(shape: Shape, version: int, *, flexible: bool) -> str:
    out = _Writer(version, flexible=flexible)
    out.put("w = out.append")
    _encode_struct(out, shape.fields, "m")
    return out.source("def encode(m, out):", "pack")


def _encode_struct(out: _Writer, fields: list[Field], source: str) -> None:
    run: list[Field] = []
    for field in out.present(fields):
        if _scalar(field) is not None:
            run.append(field)
            continue
        _encode_run(out, run, source)
        run = []
        _encode_field(out, field, f"{source}.{field.name}")
    _encode_run(out, run, source)
    if out.flexible:
        _encode_tags(out, out.tagged(fields), source)


def _encode_run(out: _Writer, run: list[Field], source: str) -> None:
    if run:
        letters = "".join(_scalar(field) or "" for field in run)
        out.put(f"w({out.struct(letters)}({', '.join(f'{source}.{field.name}' for field in run)}))")


def _length(out: _Writer, value: str, *, short: bool) -> str:
    """Source that writes a length."""
    if out.flexible:
        return f"w(VARINTS[{value} + 1] if {value} < 127 else varint({value} + 1))"
    return f"w({out.struct('h' if short else 'i')}({value}))"


def _null(out: _Writer, *, short: bool) -> str:
    return "w(b'\\0')" if out.flexible else f"w({bytes([255]) * (2 if short else 4)!r})"


def _encode_field(out: _Writer, field: Field, source: str) -> None:
    value = out.name("v")
    out.put(f"{value} = {source}")
    short = field.type == "string" and not field.is_array
    marks_null = not field.is_struct or field.is_array
    if out.is_nullable(field):
        out.put(f"if {value} is None:", "    " + (_null(out, short=short) if marks_null else "w(b'\\xff')"), "else:")
        out.depth += 1
        if not marks_null:
            out.put("w(b'\\x01')")
        _encode_value(out, field, value)
        out.depth -= 1
    else:
        _encode_value(out, field, value)


def _encode_value(out: _Writer, field: Field, value: str) -> None:
    if field.is_array:
        _encode_array(out, field, value)
    elif field.is_struct:
        out.put(f"if {value} is None: {value} = {field.type}()")
        _encode_struct(out, field.fields, value)
    elif field.type == "string":
        out.put(f"{value} = {value}.encode()", f"n = len({value})", _length(out, "n", short=True), f"w({value})")
    elif field.type == "bytes":
        out.put(f"n = len({value})", _length(out, "n", short=False), f"w({value})")
    else:  # records: None is empty where null is not allowed; a list is many buffers
        out.put(
            f"if {value} is None: {value} = b''",
            f"if type({value}) is list:",
            f"    n = size_of({value})",
            f"    {_length(out, 'n', short=False)}",
            f"    {out.sink} += {value}",
            "else:",
            f"    n = len({value})",
            f"    {_length(out, 'n', short=False)}",
            f"    w({value})",
        )


def _encode_array(out: _Writer, field: Field, value: str) -> None:
    out.put(f"n = len({value})", _length(out, "n", short=False))
    element = Field(field.name, field.type, False, field.versions, None, None, None, field.fields)
    letters = _scalar(element)
    if letters is not None and letters != "16s":
        out.put(f"if n: w(Struct('>%d{letters}' % n).pack(*{value}))")
        return
    item = out.name("i")
    out.put(f"for {item} in {value}:")
    out.depth += 1
    if field.is_struct:
        _encode_struct(out, field.fields, item)
    elif letters == "16s":
        out.put(f"w({item})")
    else:
        _encode_value(out, element, item)
    if not out.lines[-1].strip() or out.lines[-1].endswith(":"):
        out.put("pass")
    out.depth -= 1


def _encode_tags(out: _Writer, tagged: list[Field], source: str) -> None:
    if not tagged:
        out.put("w(b'\\0')")
        return
    tags, sink = out.name("g"), out.sink
    out.put(f"{tags} = []", f"{tags}_count = 0")
    for field in sorted(tagged, key=lambda field: field.tag or 0):
        default, value = default_of(field), f"{source}.{field.name}"
        test = {"ABSENT": f"if {value}:", "None": f"if {value} is not None:"}.get(default, f"if {value} != {default}:")
        out.put(test)
        out.depth += 1
        out.sink = out.name("c")
        out.put(f"{out.sink} = []", f"w = {out.sink}.append")
        if _scalar(field) is not None:
            _encode_run(out, [field], source)
        else:
            _encode_field(out, field, value)
        out.put(f"{tags} += varint({field.tag}), varint(size_of({out.sink})), *{out.sink}", f"w = {sink}.append")
        out.put(f"{tags}_count += 1")
        out.sink = sink
        out.depth -= 1
    out.put(f"w(varint({tags}_count))", f"{sink} += {tags}")
