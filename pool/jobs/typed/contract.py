"""What a handler takes and returns: read once, from its signature, when it is registered.

    dispatch   bind and look at types --> wire --> codec --> head? + bytes
    worker     bytes --> head --> codec --> upcast? --> bind and look at types --> arguments

Both ends look, since the other end may be another program: the caller's own mistake is its own
error and nothing is sent, and what an old program has sent never reaches the handler as something
else.  Who does not know the handler (a name, in a process without it) sends what it is given.

    no head            strict JSON or one `bytes`, of version 1: what a plain handler has, always
    a later version    waits for a worker that knows it: nothing is lost, no attempt is counted
    an earlier one     `upcast(version, args, kwargs)` makes the present one of it, in terms of JSON
    another codec      by its name: ours are known to all, another one waits as a later version does

A call of plain values by position costs a look at its types: those that were found right before
are remembered.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, Union, get_args

import attrs

from pool import checks
from pool.core.codec import (
    CODEC_NAME,
    HEADED,
    VERSION_MAX,
    Codec,
    decode_call,
    decode_value,
    encode_call,
    encode_value,
    head,
    head_of,
)
from pool.core.shape import DEPTH_MAX, SCALARS, to_json
from pool.errors import (
    ConfigError,
    PayloadEncodingError,
    UnknownVersion,
    WrongArguments,
    name_of,
    shown,
)
from pool.jobs.depends import hint_of, names_of, needs_of, signature_of
from pool.jobs.typed.annotations import awaited, shape_of, ungiven, unread
from pool.jobs.typed.converters import ANY, ANYTHING, NEVER, Form, Shape, Unfit, Wrong, wrong
from pool.jobs.typed.msgpack import MSGSPEC, MsgspecCall, MsgspecValue
from pool.runtime.exceptions import told

CodecName: TypeAlias = Literal["json", "msgspec", "bytes"]
Upcast: TypeAlias = Callable[
    [int, tuple[Any, ...], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]
]
OURS: Final[tuple[str, ...]] = get_args(CodecName)
NOT_COMPARED: Final = (
    "one that makes equal bytes of equal calls, and these would be compared: for an id, attach, a "
    "batch or a plan"
)
_KINDS_MAX: Final = 64  # combinations of types that are remembered
_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_GIVEN: Final = (*_BY_POSITION, inspect.Parameter.KEYWORD_ONLY)


@attrs.frozen
class OutcomeForms:
    """What a job may end with, as far as that is known before: a result, or why there is none."""

    told: str  # as errors call it
    forms: frozenset[Form] = ANYTHING  # in JSON
    may_be_bytes: bool = False
    codec: str = ""  # which has made it, if it is no JSON
    kind: type | None = None  # whose text it is, if it is one


@attrs.frozen
class Encoding:
    """How the arguments of a handler are stored: by which codec, and of which version."""

    name: str = "json"  # of the codec
    codec: Codec | None = None  # one of the user's own
    version: int = 1
    upcast: Upcast | None = None


def encoding_of(codec: object, version: object, upcast: Any) -> Encoding:
    """Take what `job()` was given.

    Raises:
        ConfigError, InvalidOption: It cannot be used.
    """
    known = checks.count("version", version, 1, VERSION_MAX)
    if upcast is not None:
        checks.plain_function("upcast", upcast, refuse=checks.setting)
    if known == 1 and upcast is not None:
        raise ConfigError(setting="upcast", problem="there is none before version 1")
    if known > 1 and upcast is None:
        problem = f"{known} needs upcast=, which makes its arguments of those of earlier ones"
        raise ConfigError(setting="version", problem=problem)
    if type(codec) is str:
        checks.word("codec", codec, *OURS)
        return Encoding(codec, None, known, upcast)
    if issubclass(type(codec), type):
        kind: Any = codec
        raise checks.setting("codec", codec, f"an object of it: {name_of(kind)}(...)")
    name, *methods = (_asked(codec, each) for each in ("name", "encode", "decode"))
    if type(name) is not str or not re.fullmatch(CODEC_NAME, name, re.ASCII) or name in OURS:
        must = (
            f"one of {', '.join(OURS)}, nor a Codec with a name of its own, "
            "1 to 32 of a-z 0-9 _ . -"
        )
        raise checks.setting("codec", codec, must)
    if not all(map(callable, methods)):
        raise ConfigError(setting="codec", problem=f"{shown(codec)} lacks encode() or decode()")
    return Encoding(name, codec, known, upcast)  # type: ignore[arg-type]


def is_canonical(codec: Codec | None) -> bool:
    """Whether a codec promises equal bytes for equal values; ours do."""
    return codec is None or _asked(codec, "is_canonical") is not False


def _asked(codec: object, name: str) -> object:
    try:
        return getattr(codec, name, None)
    except Exception:  # noqa: BLE001 - of the caller's own code
        return None


# --- what it takes --------------------------------------------------------------------------------


@attrs.define(eq=False)
class Arguments:
    """The arguments of one handler, at both ends."""

    signature: inspect.Signature  # as those who dispatch see it
    encoding: Encoding
    by_name: Mapping[str, Shape]
    codec: Codec | None  # None: JSON, or bytes as they are
    # Names that **kwargs would take, if the function had no parameter of that name: of its Job, of
    # what it depends on, of what a decorator gives it.
    taken: frozenset[str] = frozenset()
    positional: tuple[Shape, ...] = attrs.field(init=False)
    rest: Shape = attrs.field(init=False, default=ANY)  # of *args
    others: Shape = attrs.field(init=False, default=ANY)  # of **kwargs
    counts: range = attrs.field(init=False)  # of arguments by position, if there is none by name
    is_usual: bool = attrs.field(init=False)  # nothing of it has a head
    is_any: bool = attrs.field(init=False)  # ... and no type is to be looked at
    takes_none: bool = attrs.field(init=False)  # ... and it can be called without any
    lone: str = attrs.field(init=False, default="")  # by which the first one can be given
    # Of arguments by position which need nothing done, nor to be looked at.
    fine: set[tuple[type, ...]] = attrs.field(init=False, factory=set)
    # ... and are nothing but text and numbers: these are JSON as they are.
    flat: set[tuple[type, ...]] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        parameters = self.signature.parameters.values()
        named = [each for each in parameters if each.kind in _BY_POSITION]
        self.positional = tuple(self.by_name[each.name] for each in named)
        if named and named[0].kind is named[0].POSITIONAL_OR_KEYWORD:
            self.lone = named[0].name
        most, must_name = len(named), False
        for each in parameters:
            if each.kind is each.VAR_POSITIONAL:
                self.rest, most = self.by_name[each.name], sys.maxsize - 1
            elif each.kind is each.VAR_KEYWORD:
                self.others = self.by_name[each.name]
            elif each.kind is each.KEYWORD_ONLY:
                must_name = must_name or each.default is each.empty
        least = sum(each.default is each.empty for each in named)
        self.counts = range(0) if must_name else range(least, most + 1)
        self.is_usual = self.encoding.name == "json" and self.encoding.version == 1
        self.takes_none = self.is_usual and 0 in self.counts
        self.is_any = self.is_usual and all(shape is ANY for shape in self.by_name.values())

    @property
    def is_plain(self) -> bool:
        """Whether it takes nothing but what JSON has itself, or bytes."""
        shapes = [*self.by_name.values(), self.rest, self.others]
        return self.codec is None and all(each.is_plain or each.kind is bytes for each in shapes)

    def encode(self, handler: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call as bytes.

        Raises:
            WrongArguments: It is not one of this handler.
            PayloadEncodingError: Something in it cannot be encoded.
        """
        if len(kwargs) == 1 and not args and self.codec is None:
            [(name, value)] = kwargs.items()
            if issubclass(type(value), bytes) and name == self.lone:
                args, kwargs = (value,), {}  # it is the only one, by its name, too
        if not kwargs:
            if not args and self.takes_none:
                return b""
            kinds = tuple(map(type, args))
            if kinds in self.flat:
                try:
                    return to_json(args).encode()
                except ValueError:  # NaN, say: what is wrong is told below
                    return encode_call(args, kwargs)
            if kinds in self.fine or (self.is_any and len(args) in self.counts):
                self._note(kinds)
                return encode_call(args, kwargs)
        if self.codec is not None:
            self._bind(handler, args, kwargs)
            data: bytes = self._coded(handler, encode_call, args, kwargs, self.codec)
        else:
            data = encode_call(*self._converted(handler, args, kwargs, "to_wire"))
        if self.encoding.version == 1:
            return data
        name, _, rest = head_of(data)
        return head(name, self.encoding.version) + rest

    def check_canonical(
        self, data: bytes, handler: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse what is to be compared and was made by a codec that makes other bytes each time.

        Of one that does not say so a second try shows it: a nonce, say.

        Raises:
            InvalidOption: Equal calls of this handler are not equal bytes.
        """
        codec = self.encoding.codec
        if codec is None:
            return
        if not is_canonical(codec) or self.encode(handler, args, kwargs) != data:
            raise checks.option("codec", codec.name, NOT_COMPARED)

    def encode_behind(self, handler: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call whose first argument is another job's result, as JSON: `null` is its place.

        Raises:
            WrongArguments: No call of this handler can begin with another argument and go on so.
            PayloadEncodingError: Something in it cannot be encoded.
        """
        self._bind(handler, (None, *args), kwargs)
        if self.encoding.name == "json":
            made, kwargs = self._converted(handler, (None, *args), kwargs, "to_wire", passed=1)
            args = tuple(made[1:])
        elif isinstance(self.codec, MsgspecCall):
            self._coded(handler, self.codec.check_behind, args, kwargs)
        return head(version=self.encoding.version) + encode_call((None, *args), kwargs)

    @property
    def first(self) -> Shape:
        """What may be given as the first argument, by position."""
        if self.encoding.name == "bytes":
            return _ONLY_BYTES
        return self.positional[0] if self.positional else self.rest

    def decode(self, handler: str, data: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call, as the handler takes them.

        Raises:
            WrongArguments: It is not one of this handler.
            UnknownVersion, CodecMissing: Another program may know it.
            PayloadEncodingError: The bytes are not what `encode()` makes.
        """
        if not data and self.takes_none:
            return (), {}
        if data[:1] != HEADED and self.is_usual:
            plain, named = decode_call(data)
            if not named and (
                (self.is_any and len(plain) in self.counts) or tuple(map(type, plain)) in self.fine
            ):
                return plain, named
            return self._converted(handler, plain, named, "from_wire")
        name, version, _ = head_of(data)
        if version > self.encoding.version:
            known = self.encoding.version
            problem = f"they are of version {version}, {handler!r} knows {known} here"
            raise UnknownVersion(path="$", problem=problem, version=version, known=known)
        is_mine = self.codec is not None and self.codec.name == name
        if is_mine and (version == self.encoding.version or self.encoding.name != "msgspec"):
            args, kwargs = self._coded(handler, decode_call, data, self.codec)
            if version == self.encoding.version:
                self._bind(handler, args, kwargs)
                return args, kwargs
        else:
            args, kwargs = decode_call(data, ours(name))
        if version < self.encoding.version:
            args, kwargs = self._upcast(handler, version, args, kwargs)
        if isinstance(self.codec, MsgspecCall):
            self._bind(handler, args, kwargs)
            call = self._coded(handler, self.codec.convert, args, kwargs)
            return call["args"], call["kwargs"]
        return self._converted(handler, args, kwargs, "from_wire")

    def _bind(self, handler: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not kwargs and len(args) in self.counts:
            return
        if mine := sorted(self.taken.intersection(kwargs)):
            problem = f"{mine[0]!r} is a parameter of its own, and no argument"
            raise WrongArguments(handler=handler, problem=problem)
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArguments(handler=handler, problem=str(error)) from None

    def _converted(
        self,
        handler: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        way: Literal["to_wire", "from_wire"],
        *,
        passed: int = 0,  # arguments by position that are not there yet
    ) -> tuple[list[Any], dict[str, Any]]:
        self._bind(handler, args, kwargs)
        is_bytes = not kwargs and len(args) == 1 and issubclass(type(args[0]), bytes)
        if self.encoding.name == "bytes" and not is_bytes:
            raise WrongArguments(handler=handler, problem="it takes one bytes value and no other")
        shapes = [*self.positional, *[self.rest] * (len(args) - len(self.positional))]
        shapes[:passed] = [ANY] * passed
        if is_bytes and shapes[0].takes_bytes:
            return list(args), kwargs
        made, named, name = list[Any](), dict[str, Any](), ""
        try:
            for shape, value in zip(shapes, args, strict=False):
                name = ""
                made.append(getattr(shape, way)(value))
            for name, value in kwargs.items():
                named[name] = getattr(self.by_name.get(name, self.others), way)(value)
        except Wrong as error:
            name = name or self._name_at(len(made))
            problem = f"{name}{error.path} {error.problem}"
            raise WrongArguments(handler=handler, problem=problem) from error.__cause__
        except RecursionError:
            problem = f"{name or self._name_at(len(made))} is deeper than {DEPTH_MAX}"
            raise WrongArguments(handler=handler, problem=problem) from None
        except Exception as error:  # of the caller's own code, such as a check of its class
            problem = f"{name or self._name_at(len(made))} is refused: {told(error)}"
            raise WrongArguments(handler=handler, problem=problem) from error
        kinds = tuple(map(type, args))
        are_exact = all(k in shape.exact for k, shape in zip(kinds, shapes, strict=False))
        if are_exact and self.is_usual and not kwargs and len(self.fine) < _KINDS_MAX:
            self.fine.add(kinds)
            self._note(kinds)
        return made, named

    def _note(self, kinds: tuple[type, ...]) -> None:
        if kinds and len(self.flat) < _KINDS_MAX and SCALARS.issuperset(kinds):
            self.flat.add(kinds)

    def _name_at(self, at: int) -> str:
        names = list(self.signature.parameters)
        return names[at] if at < len(self.positional) else f"argument {at + 1}"

    def _coded(self, handler: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except (PayloadEncodingError, Wrong) as error:
            found = error if isinstance(error, Wrong) else error.__cause__
            if isinstance(found, Wrong):
                raise WrongArguments(
                    handler=handler, problem=f"it{found.path} {found.problem}"
                ) from found
            raise

    def _upcast(
        self, handler: str, version: int, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        assert self.encoding.upcast is not None, "a later version has one"
        try:
            made = self.encoding.upcast(version, tuple(args), kwargs)
        except Exception as error:  # of the caller's own code
            problem = f"those of version {version} were not made new ones of: {told(error)}"
            raise WrongArguments(handler=handler, problem=problem) from error
        match made:
            case ((tuple() | list()) as args, dict() as kwargs):
                return args, kwargs
        problem = f"upcast() returned {shown(made)}, which is not (args, kwargs)"
        raise WrongArguments(handler=handler, problem=problem)


def arguments_of(name: str, fn: Callable[..., Any], encoding: Encoding) -> Arguments:
    """Return what a handler takes beside the Job and its dependencies.

    Raises:
        ConfigError: It takes what cannot go over the wire, or the codec is not installed.
    """
    found = list[inspect.Parameter]()
    is_behind = False  # a dependency that could be given by position
    for at, (each, depends) in enumerate(needs_of(name, fn)):
        if depends is not None:
            is_behind = is_behind or each.kind in _BY_POSITION
        elif is_behind and each.kind in _BY_POSITION:
            found.append(each.replace(kind=each.KEYWORD_ONLY))
        elif at or each.kind is each.VAR_POSITIONAL:  # the first one is the Job's
            found.append(each)
    if not found and not _has_signature(fn):
        parameter = inspect.Parameter
        found = [
            parameter("args", parameter.VAR_POSITIONAL),
            parameter("kwargs", parameter.VAR_KEYWORD),
        ]
    signature = inspect.Signature(sorted(found, key=lambda each: each.kind))
    hints = {each.name: hint_of(each.annotation, fn) for each in found}
    own = frozenset[str]()
    if any(each.kind is each.VAR_KEYWORD for each in found):
        needs = (each for each, _ in needs_of(name, fn) if each.kind is not each.POSITIONAL_ONLY)
        own = names_of(fn).union(each.name for each in needs) - hints.keys()
    if encoding.codec is not None:
        by_name, codec = dict.fromkeys(hints, ANY), encoding.codec
    elif encoding.name == "msgspec":
        by_name, codec = dict.fromkeys(hints, ANY), MsgspecCall.of(name, signature, hints)
    else:
        by_name, codec = {each.name: _shape(name, each, hints) for each in found}, None
    return Arguments(signature, encoding, by_name, codec, own)


def _has_signature(fn: Callable[..., Any]) -> bool:
    try:
        return signature_of(fn) is not None
    except (TypeError, ValueError):  # a builtin has none
        return False


def _shape(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Shape:
    hint = hints[parameter.name]
    try:
        return shape_of(hint)
    except Unfit as error:
        if parameter.kind not in _GIVEN:
            return unread(str(error))
        if parameter.default is not parameter.empty:
            return ungiven(str(error))  # it stays what its default is
        problem = f"{name}: nothing can be given for its {parameter.name}: {error}"
        raise ConfigError(setting="handler", problem=problem) from None


# --- what it returns ------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class ValueCodec:
    """The results of one handler, or the states of its jobs, at both ends."""

    shape: Shape
    codec: Codec | None = None

    @property
    def name(self) -> str:
        """Of the codec."""
        return "json" if self.codec is None else self.codec.name

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises:
            PayloadEncodingError: It is of another type, or cannot be encoded.
        """
        codec = self.codec
        if codec is None and not (issubclass(type(value), bytes) and self.shape.takes_bytes):
            value = _told(self.shape.to_wire, value)
        elif isinstance(codec, MsgspecValue) and (value is None or type(value) is bytes):
            _told(codec.convert, value)  # refuses what is of another type
            codec = None  # these every program reads, also one without msgspec
        data: bytes = _told(encode_value, value, codec)
        return data

    def decode(self, data: bytes) -> Any:
        """Return the value that these bytes are.

        Raises:
            PayloadEncodingError: They are no value of this type.
            CodecMissing: Another codec made them.
        """
        name, _, _ = head_of(data)
        if self.codec is not None and self.codec.name == name:
            return _told(decode_value, data, self.codec)
        value = decode_value(data, ours(name))
        if self.codec is None:
            return _told(self.shape.from_wire, value)
        if isinstance(self.codec, MsgspecValue):
            return _told(self.codec.convert, value)
        return value


def _bytes_or_none(value: Any) -> Any:
    if value is not None and type(value) is not bytes:
        raise wrong(value, "bytes or None, which is all that the codec 'bytes' carries")
    return value


_BYTES: Final = attrs.evolve(ANY, name="bytes", to_wire=_bytes_or_none, from_wire=_bytes_or_none)


# As an argument; in JSON there is none.
_ONLY_BYTES: Final = attrs.evolve(_BYTES, forms=frozenset())


def check_first(handler: str, outcome: OutcomeForms, first: Shape = ANY, *, is_alone: bool) -> None:
    """Refuse a call whose first argument is what another job ends with, if that can never fit.

    Raises:
        WrongArguments: It cannot.
    """
    has_bytes = outcome.may_be_bytes and first.takes_bytes
    fits = outcome.forms & first.forms and first.kind not in NEVER.get(outcome.kind, ())
    if not outcome.codec and (fits or (has_bytes and is_alone)):
        return
    problem = f"its first one is {outcome.told}, expected {first.name}"
    if outcome.codec:
        problem = f"its first one is {outcome.told}, of the codec {outcome.codec!r}: that cannot go"
    elif has_bytes:
        problem = f"its first one is {outcome.told}: bytes are the only argument, or none"
    raise WrongArguments(handler=handler, problem=problem)


@lru_cache(256)
def outcome_of(name: str, fn: Callable[..., Any], codec: str) -> OutcomeForms:
    """Return what the result of a handler may be, by what it says itself."""
    told = f"the result of {name!r}"
    if codec == "bytes":
        return OutcomeForms(told, frozenset({"null"}), may_be_bytes=True)
    if codec != "json":
        return OutcomeForms(told, codec=codec)
    try:
        shape = shape_of(awaited(hint_of(signature_of(fn).return_annotation, fn)))
    except (TypeError, ValueError, Unfit):
        shape = ANY
    forms = frozenset[Form]() if shape.kind is bytes else shape.forms
    kind = shape.kind if forms == {"text"} else None
    return OutcomeForms(f"{told}, {shape.name}", forms, may_be_bytes=shape.takes_bytes, kind=kind)


def result_of(name: str, fn: Callable[..., Any], encoding: Encoding) -> ValueCodec | None:
    """Return what a handler returns; None: as it is, in JSON.

    Raises:
        ConfigError: It returns what cannot go over the wire, or the codec is not installed.
    """
    if encoding.codec is not None:
        return ValueCodec(ANY, encoding.codec)
    if encoding.name == "bytes":
        return ValueCodec(_BYTES)
    try:
        hint = awaited(hint_of(signature_of(fn).return_annotation, fn))
    except (TypeError, ValueError):  # a builtin has no signature
        hint = Any
    return typed(f"{name}: it returns what nobody can be sent", hint, encoding)


def typed(problem: str, hint: Any, encoding: Encoding) -> ValueCodec | None:
    """Return how values of an annotation are stored; None: as they are, in JSON.

    Raises:
        ConfigError: They cannot be; `problem` says of what.
    """
    if encoding.name == "msgspec":
        return ValueCodec(ANY, MsgspecValue.of(problem, hint))
    try:
        shape = shape_of(hint)
    except Unfit as error:
        raise ConfigError(setting="handler", problem=f"{problem}: {error}") from None
    return None if shape.is_plain else ValueCodec(shape)


def state_of(name: str, given: Any, encoding: Encoding) -> ValueCodec | None:
    """Return how the states of a handler's jobs are stored; None: as they are, in JSON.

    Raises:
        ConfigError: They cannot be.
    """
    if given is None:
        return None
    if issubclass(type(given), str):
        raise checks.setting("state", given, "a type: its name is not enough")
    try:
        hint = Union[given, None]  # noqa: UP007
        made = typed(f"{name}: its state cannot be stored", hint, encoding)
        shape = shape_of(hint) if made is None else ANY
        # Unlike a result, of which a caller sees at once that it is another type.
        return made if shape is ANY else ValueCodec(shape)
    except ConfigError as error:
        raise ConfigError(setting="state", problem=error.problem) from None
    except Exception as error:  # whatever it is, it is no type
        raise checks.setting("state", given, "a type") from error


def ours(name: str) -> Codec | None:
    """Return the codec of this name that every program knows; None: there is none."""
    return MSGSPEC if name == MSGSPEC.name else None


def _told(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Wrong as error:
        raise PayloadEncodingError(path=f"${error.path}", problem=error.problem) from error
    except PayloadEncodingError as error:
        if isinstance(found := error.__cause__, Wrong):  # of a codec of ours
            raise PayloadEncodingError(path=f"${found.path}", problem=found.problem) from found
        raise
    except RecursionError as error:
        raise PayloadEncodingError(path="$", problem=f"deeper than {DEPTH_MAX}") from error
    except Exception as error:  # of the caller's own code, such as a check of its class
        raise PayloadEncodingError(path="$", problem=f"is refused: {told(error)}") from error
