"""The *parser* turns tokens into nodes and refuses, with Go's sentences, what Go's own parser refuses."""

from __future__ import annotations

from collections.abc import Collection

from omlx.prompting.errors import TemplateError
from omlx.prompting.gotemplate import nodes
from omlx.prompting.gotemplate.lexer import Token, quote, tokens
from omlx.prompting.gotemplate.literals import parse_number, unquote
from omlx.prompting.gotemplate.nodes import Block, Expression, Pipe, Statement

MAX_DEPTH = 60
"""Nesting of actions and parentheses. Python's stack is the limit; real templates nest a few levels."""


def parse(source: str, functions: Collection[str]) -> dict[str, Block]:
    """The templates in `source` by name; the source itself is "". Raises TemplateError with Go's message."""
    parser = _Parser(source, functions)
    parser.templates[""] = parser.whole()
    return parser.templates


class _Parser:
    def __init__(self, source: str, functions: Collection[str]) -> None:
        self._tokens = tokens(source)
        self._waiting: list[Token] = []
        self._last = Token("eof", "", 1)
        self._functions = functions
        self._variables = ["$"]
        self._action_line = 0
        self._loops = 0
        self._depth = 0
        self.templates: dict[str, Block] = {}

    # ------------------------------------------------------------ tokens
    def _next(self) -> Token:
        token = self._waiting.pop() if self._waiting else next(self._tokens, Token("eof", "", self._last.line))
        self._last = token
        if token.kind == "left":
            self._action_line = token.line
        elif token.kind == "right":
            self._action_line = 0
        return token

    def _back(self, token: Token) -> None:
        self._waiting.append(token)

    def _next_solid(self) -> Token:
        token = self._next()
        return self._next() if token.kind == "space" else token

    def _peek_solid(self) -> Token:
        token = self._next_solid()
        self._back(token)
        return token

    def _fail(self, message: str) -> TemplateError:
        return TemplateError(f"template: :{self._last.line}: {message}")

    def _unexpected(self, token: Token, context: str) -> TemplateError:
        if token.kind == "error":
            if self._action_line in {0, token.line}:
                return self._fail(token.text)
            started = f"started at :{self._action_line}"
            # Go avoids "unclosed action in action".
            return self._fail(f"{token.text} {started if token.text.endswith(' action') else 'in action ' + started}")
        return self._fail(f"unexpected {token.describe()} in {context}")

    def _expect(self, kind: str, context: str) -> Token:
        token = self._next_solid()
        if token.kind != kind:
            raise self._unexpected(token, context)
        return token

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fail("template nests too deeply")

    # ------------------------------------------------------------ statements
    def whole(self) -> Block:
        body: list[Statement] = []
        while True:
            token = self._next()
            if token.kind == "eof":
                return tuple(body)
            if token.kind == "left":
                inner = self._next_solid()
                if inner.kind == "keyword" and inner.text == "define":
                    self._define()
                    continue
                self._back(inner)
            statement = self._statement(token)
            if isinstance(statement, Token):
                raise self._fail(f"unexpected {{{{{statement.text}}}}}")
            body.append(statement)

    def _define(self) -> None:
        context = "define clause"
        name = self._name(self._next_solid(), context)
        self._expect("right", context)
        outer, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        body, ending = self._list("define")
        self._variables, self._loops = outer, loops
        if ending.text != "end":
            raise self._fail(f"unexpected {{{{{ending.text}}}}} in {context}")
        self._add(name, body)

    def _add(self, name: str, body: Block) -> None:
        empty = all(isinstance(part, nodes.Text) and not part.text.strip() for part in body)
        if name in self.templates and not empty and self.templates[name]:
            raise self._fail(f"template: multiple definition of template {quote(name)}")
        if name not in self.templates or not empty:
            self.templates[name] = body

    def _name(self, token: Token, context: str) -> str:
        if token.kind != "string":
            raise self._unexpected(token, context)
        return self._unquote(token)

    def _statement(self, token: Token) -> Statement | Token:
        """A statement, or the `end` or `else` token that ends the list it is in."""
        if token.kind == "text":
            return nodes.Text(token.line, token.text)
        if token.kind != "left":
            raise self._unexpected(token, "input")
        token = self._next_solid()
        if token.kind != "keyword":
            self._back(token)
            return self._action()
        match token.text:
            case "if" | "with" | "range":
                return self._control(token)
            case "template":
                return self._template(token)
            case "block":
                return self._block(token)
            case "break" | "continue":
                return self._jump(token)
            case "end" | "else":
                return self._ending(token)
        raise self._unexpected(token, "command")

    def _ending(self, token: Token) -> Token:
        follower = self._peek_solid()
        if token.text == "end" or follower.kind != "keyword" or follower.text not in {"if", "with"}:
            self._expect("right", token.text)
        return token

    def _list(self, context: str) -> tuple[Block, Token]:
        """Statements up to `{{ end }}` or `{{ else }}`, and what ended them."""
        self._deeper()
        body: list[Statement] = []
        while True:
            token = self._next()
            if token.kind == "eof":
                raise self._fail("unexpected EOF")
            statement = self._statement(token)
            if isinstance(statement, Token):
                self._depth -= 1
                return tuple(body), statement
            body.append(statement)

    def _action(self) -> nodes.Action:
        pipe = self._pipe("command", "right")
        return nodes.Action(pipe.line, pipe)

    def _control(self, keyword: Token) -> Statement:
        """`if`, `with` or `range` with its branches. `else if` and `else with` are an inner statement."""
        kept = len(self._variables)
        kind = keyword.text
        pipe = self._pipe(kind, "right")
        self._loops += kind == "range"
        body, ending = self._list(kind)
        self._loops -= kind == "range"
        otherwise: Block = ()
        if ending.text == "else":
            follower = self._next()
            if follower.kind == "space":
                follower = self._next()
            if kind != "range" and follower.kind == "keyword" and follower.text == kind:
                self._deeper()
                otherwise = (self._control(follower),)
                self._depth -= 1
            else:
                self._back(follower)
                otherwise, ending = self._list(kind)
                if ending.text != "end":
                    raise self._fail(f"expected end; found {{{{{ending.text}}}}}")
        del self._variables[kept:]
        if kind == "if":
            return nodes.If(keyword.line, pipe, body, otherwise)
        node = nodes.With if kind == "with" else nodes.Range
        return node(keyword.line, pipe, body, otherwise)

    def _template(self, keyword: Token) -> nodes.Call:
        context = "template clause"
        name = self._name(self._next_solid(), context)
        token = self._next_solid()
        if token.kind == "right":
            return nodes.Call(keyword.line, name, None)
        self._back(token)
        return nodes.Call(keyword.line, name, self._pipe(context, "right"))

    def _block(self, keyword: Token) -> nodes.Call:
        name = self._name(self._next_solid(), "block clause")
        pipe = self._pipe("block clause", "right")
        outer, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        body, ending = self._list("block")
        self._variables, self._loops = outer, loops
        if ending.text != "end":
            raise self._fail(f"unexpected {{{{{ending.text}}}}} in block clause")
        self._add(name, body)
        return nodes.Call(keyword.line, name, pipe)

    def _jump(self, keyword: Token) -> Statement:
        token = self._next_solid()
        if token.kind != "right":
            raise self._unexpected(token, f"{{{{{keyword.text}}}}}")
        if not self._loops:
            raise self._fail(f"{{{{{keyword.text}}}}} outside {{{{range}}}}")
        return nodes.Break(keyword.line) if keyword.text == "break" else nodes.Continue(keyword.line)

    # ------------------------------------------------------------ expressions
    def _pipe(self, context: str, end: str) -> Pipe:
        self._deeper()
        line = self._peek_solid().line
        variables, assigns = self._declarations(context)
        commands: list[nodes.Command] = []
        while True:
            token = self._next_solid()
            if token.kind == end:
                break
            if token.kind not in {"bool", "dot", "field", "name", "number", "nil", "string", "variable",
                                  "open"}:  # fmt: skip
                raise self._unexpected(token, context)
            self._back(token)
            commands.append(self._command())
        if not commands:
            raise self._fail(f"missing value for {context}")
        for command in commands[1:]:
            first = command.arguments[0]
            if isinstance(first, nodes.Constant | nodes.Dot | nodes.Nil):
                stage = commands.index(command) + 1
                raise self._fail(f"non executable command in pipeline stage {stage}")
        self._depth -= 1
        return Pipe(line, tuple(variables), assigns, tuple(commands))

    def _declarations(self, context: str) -> tuple[list[str], bool]:
        """The variables in front of `:=` or `=`; in a range there may be two."""
        variables: list[str] = []
        while True:
            token = self._peek_solid()
            if token.kind != "variable":
                return variables, False
            self._next_solid()
            after = self._next()
            solid = self._next() if after.kind == "space" else after
            if solid.kind in {"assign", "declare"}:
                variables.append(token.text)
                if solid.kind == "declare":
                    self._variables.append(token.text)
                    for earlier in variables[:-1]:
                        if earlier not in self._variables:
                            self._variables.append(earlier)
                return variables, solid.kind == "assign"
            if solid.kind == "comma" and context == "range" and len(variables) < 2:
                variables.append(token.text)
                if self._peek_solid().kind != "variable":
                    raise self._fail("range can only initialize variables")
                if len(variables) == 2:
                    raise self._fail(f"too many declarations in {context}")
                continue
            if solid.kind == "comma":
                raise self._fail(f"too many declarations in {context}")
            self._back(solid)
            if after is not solid:
                self._back(after)
            self._back(token)
            if variables:
                raise self._fail("range can only initialize variables")
            return variables, False

    def _known(self, name: str) -> None:
        if name not in self._variables:
            raise self._fail(f"undefined variable {quote(name)}")

    def _command(self) -> nodes.Command:
        line = self._peek_solid().line
        arguments: list[Expression] = []
        while True:
            operand = self._operand()
            if operand is not None:
                arguments.append(operand)
            token = self._next()
            if token.kind == "space":
                continue
            if token.kind in {"right", "close"}:
                self._back(token)
            elif token.kind != "pipe":
                raise self._unexpected(token, "operand")
            break
        if not arguments:
            raise self._fail("empty command")
        return nodes.Command(line, tuple(arguments))

    def _operand(self) -> Expression | None:
        node = self._term()
        if node is None:
            return None
        fields: list[str] = []
        token = self._next()
        while token.kind == "field":
            fields.append(token.text[1:])
            token = self._next()
        self._back(token)
        if not fields:
            return node
        match node:
            case nodes.Field(line, names):
                return nodes.Field(line, (*names, *fields))
            case nodes.Variable(line, name, names):
                return nodes.Variable(line, name, (*names, *fields))
            case nodes.Constant() | nodes.Nil() | nodes.Dot():
                raise self._fail(f"unexpected . after term {quote(_shown(node))}")
        return nodes.FieldChain(node.line, node, tuple(fields))

    def _term(self) -> Expression | None:
        token = self._next_solid()
        match token.kind:
            case "name":
                if token.text not in self._functions:
                    raise self._fail(f"function {quote(token.text)} not defined")
                return nodes.Function(token.line, token.text)
            case "dot":
                return nodes.Dot(token.line)
            case "nil":
                return nodes.Nil(token.line)
            case "variable":
                self._known(token.text)
                return nodes.Variable(token.line, token.text, ())
            case "field":
                return nodes.Field(token.line, (token.text[1:],))
            case "bool":
                return nodes.Constant(token.line, token.text == "true", token.text)
            case "number":
                return nodes.Constant(token.line, self._parse_number(token.text), token.text)
            case "string":
                return nodes.Constant(token.line, self._unquote(token), token.text)
            case "open":
                return self._pipe("parenthesized pipeline", "close")
        self._back(token)
        return None

    def _unquote(self, token: Token) -> str:
        if token.text.startswith("`"):
            return token.text[1:-1].replace("\r", "")
        value = unquote(token.text[1:-1], '"')
        if value is None:
            raise self._fail("invalid syntax")
        return value

    def _parse_number(self, text: str) -> int | float | complex:
        if text.startswith("'"):
            value = unquote(text[1:-1], "'")
            if value is None or len(value) != 1:
                raise self._fail(f"malformed character constant: {text}")
            return ord(value)
        number = parse_number(text)
        if number is None and text.isdigit():
            raise self._fail(f"integer overflow: {quote(text)}")
        if number is None:
            raise self._fail(f"illegal number syntax: {quote(text)}")
        if isinstance(number, int) and not -(1 << 63) <= number < 1 << 64:
            raise self._fail(f"integer overflow: {quote(text)}")
        return number


def _shown(node: nodes.Constant | nodes.Nil | nodes.Dot) -> str:
    match node:
        case nodes.Constant(_, _, text):
            return text
        case nodes.Nil():
            return "nil"
    return "."
