"""Recognises tool poisoning: definitions of tools, prompts or resources whose texts give orders to a model instead of describing the item.

The result is a warning for a person. Nothing is hidden, because honest servers also write "always call this first". `tests/policy` measures
recall and false positives on a labelled sample; the figures are in `docs/trust.md`. Used by `upstream` for each listing.

Decided: English phrases with weights. Because: a wrong warning costs a person a look, but a model that judges texts costs a call, and the
judged texts can steer the model. Revisit when: attacks in other languages are seen.

Decided: a rule is a chain of simple patterns with distances between them. Because: one pattern with several gaps takes polynomial time on a
text that a hostile server writes for that purpose; a chain takes linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast
from unicodedata import category, normalize

from gateway.json_types import JsonMapping, JsonValue, members_of, objects_in

THRESHOLD = 2
"""Minimum sum of the weights of suspicious phrases in a reported definition. Phrases of weight 1 also occur in honest definitions."""

MAX_TEXT_CHARS = 50_000
"""Maximum number of characters of a tool's, prompt's or resource's definition that are examined."""

_TEXT_KEYS = frozenset({"title", "description", "default", "const", "enum", "examples", "pattern", "format", "$comment"})
"""Keywords of a tool's schema whose strings a model reads."""

_SENSITIVE = (
    r"~/\.\w+|/root/\.|\$home/\.|\.ssh\b|\bid_(?:rsa|ed25519)|\.aws/|\.netrc|\.npmrc|\.pypirc|\.kube/|\.gnupg|\.env\b"
    r"|/etc/(?:passwd|shadow|hosts)"
    r"|\bmcp\.json|\bmcp config|_config\.json|\.cursor/|authorized_keys|wallet\.dat|\.pem\b|\bkeychain|\bprivate keys?\b|\bssh keys?\b"
    r"|\benv(?:ironment)? variables?\b|\bapi[ _-]?keys?\b|\bcredentials?\b|\bpasswords?\b|\b(?:access|session|auth"
    r"|bearer) tokens?\b|\bseed phrase"
)
_TALK = (
    r"\b(?:conversation|chat|dialogu?e|message)(?: history| log| context)\b|\bconversation\b|\bsystem (?:prompt|message|instructions?)"
    r"|\b(?:previous|prior|earlier|other|past) (?:messages|tool (?:calls?|results?|outputs?)|prompts?)\b|\bchain of thought"
    r"|\bavailable tools\b|\blist of (?:all )?(?:your |the )?tools\b|\buser'?s? (?:question|request|prompt|query)s? (?:verbatim"
    r"|word for word)"
)
_PASS = (
    r"\b(?:pass|put|include|place|provide|insert|paste|write|append|add|supply|store|copy|attach|encode|embed|fill|send|submit|dump"
    r"|summari[sz]e)\b"
)
_READ = r"\b(?:read|open|cat|load|fetch|look up|retrieve|get|extract|collect|gather|copy|find|dump|print)\b"
_NOT = r"\b(?:do not|don'?t|never|must not|should not|shouldn'?t|no need to|refrain from|without|avoid)\b"
_PERSON = r"\b(?:users?|humans?|person|people|anyone|anybody|operators?|developers?|owners?|customers?)\b"
_MODEL = r"(?:ai|assistant|model|llm|agent|claude|chatgpt|gpt|copilot)(?: (?:assistant|model|agent))?s?"
_ALL = r"\b(?:entire|full|complete|whole|all|every|verbatim|previous|your|the|this|raw|exact|last)\b"
_OTHER_TOOL = (
    r"\b(?:any|every|each|all|other|another|different|some other)(?: other| the)? (?:mcp )?"
    r"(?:tools?|servers?|functions?|(?:tool |function )?calls?|actions?|repl(?:y|ies)|responses?|answers?|emails?|messages?)\b"
)
_NAMED_TOOL = (
    r"(?:[`'\"][a-z][a-z0-9_-]{0,64}[`'\"]|\b[a-z][a-z0-9]{0,40}(?:[_-][a-z0-9]{1,40}){1,8})(?: tool| function)?(?: is| gets| are)? "
    r"(?:called|used|invoked|available|run|present|executed|requested)\b"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    weight: int
    reason: str
    parts: tuple[str | int, ...]
    """Regular expressions that must match in order, and between two of them the maximum number of characters between their matches."""
    in_sentence: bool = True
    """Whether the matches of all `parts` must be in one sentence."""


_OVERRIDES = "tells a model to ignore other instructions"
_KEEPS = "tells a model to keep something from the user"
_SECRETLY = "tells a model to act in secret"
_ROLE = "imitates a message of another role"
_FILES = "asks for a file or secret"
_TALKS = "asks for the conversation"
_PARAMETER = "asks for data in an unrelated parameter"
_MODELS = "addresses the model"
_OTHERS = "gives orders about other tools"
_MONEY = "redirects messages or money"

_RULES = (
    _Rule(
        2,
        _OVERRIDES,
        (
            r"\b(?:ignore|disregard|forget|override|bypass|supersedes?|overrides?|take precedence over|takes precedence over)\b",
            40,
            r"\b(?:previous|prior|earlier|above|existing|all|other|system|any|safety|your|preceding|former)\b",
            30,
            r"\b(?:instructions?|prompts?|rules?|directions?|directives?|guidelines?|messages?|polic(?:y|ies)|constraints?"
            r"|restrictions?)\b",
        ),
    ),
    _Rule(
        2,
        _KEEPS,
        (
            _NOT,
            30,
            r"\b(?:tell|mention|inform|reveal|notify|alert|warn|disclos|let|explain|report|show)(?:e|s|ing)?\b",
            40,
            rf"{_PERSON}|\bthem\b",
        ),
    ),
    _Rule(
        2,
        _KEEPS,
        (
            r"\b(?:do not|don'?t|never|must not)\b",
            20,
            r"\b(?:mention|reveal|disclose|talk about|refer to|acknowledge)\b",
            30,
            r"\b(?:this|these|that you|instructions?|note|step)\b",
        ),
    ),
    _Rule(
        2,
        _KEEPS,
        (
            _PERSON,
            1,
            r"\b(?:must|should|does|do|will|need|needs|can)(?: not|n'?t|not)\b",
            1,
            r"\b(?:see|know|notice|be (?:told|informed|aware|shown|bothered)|need to know)\b",
        ),
    ),
    _Rule(
        2,
        _SECRETLY,
        (
            r"\b(?:silently|secretly|covertly|discreetly|stealthily|quietly|behind the scenes)\b",
            60,
            r"\b(?:send|call|read|copy|forward|include|run|execute|add|upload|append|log|use|invoke|collect|pass|bcc|attach)\b",
        ),
    ),
    _Rule(1, _SECRETLY, (r"\bkeep (?:this|it|these)\b", 20, r"\b(?:secret|hidden|confidential|to yourself|private)\b"
        r"|\bsecretly\b|\bcovertly\b")),
    _Rule(
        2,
        "tells a model not to ask for consent",
        (
            _NOT,
            12,
            r"\b(?:ask|asking|request|requesting|seek|seeking|prompt|prompting|wait|waiting)\b",
            24,
            r"\b(?:confirmation|permission|consent|approval)\b|\b(?:user|human|person) (?:for|to|first|whether|if|before)\b",
        ),
    ),
    _Rule(
        2,
        _ROLE,
        (
            r"<\s?/?\s?(?:important|system|secret|instructions?|hidden|critical|admin|assistant|override|sys|developer|user_instructions?"
            r"|note_to_\w+|priority)\s?/?\s?>"
            r"|\[/?(?:inst|system|important|admin|assistant|system message|system note)\]|<\|\w+\|>|<<\s?sys\s?>>"
            r"|(?:^|\n|[.!] )(?:#+ ?)?(?:\*\*)?(?:system|assistant|admin|developer)(?: (?:message|prompt|note|override|notice"
            r"|instruction|update))?"
            r"(?:\*\*)?:",
        ),
    ),
    _Rule(1, "hides text in a comment", (r"<!--",)),
    _Rule(2, _FILES, (_READ, 80, _SENSITIVE, 120, rf"{_PASS}|\b(?:parameter|argument|sidenote)s?\b"), in_sentence=False),
    _Rule(
        2,
        _FILES,
        (
            _PASS,
            60,
            r"\b(?:contents? of|values? of|all|any|every|your|the user'?s?|their|found|available|full|entire|current)\b",
            40,
            _SENSITIVE,
        ),
    ),
    _Rule(1, "names a place of secrets", (r"~/\.(?:ssh|aws|gnupg|kube|cursor|config)|\bid_(?:rsa|ed25519)\b|/etc/(?:passwd"
        r"|shadow)|\bmcp\.json\b|_desktop_config\.json",)),
    _Rule(2, _TALKS, (_PASS, 50, _ALL, 24, _TALK)),
    _Rule(
        2,
        _TALKS,
        (
            r"\b(?:reveal|repeat|output|print|leak|return|give|quote|tell|show|state)\b",
            20,
            r"\b(?:your|the)\b",
            24,
            r"\b(?:system (?:prompt|message|instructions?)|initial instructions|hidden instructions|chain of thought)\b",
        ),
    ),
    _Rule(2, _PARAMETER, (r"\bside[-_ ]?notes?\b",)),
    _Rule(
        2,
        _PARAMETER,
        (
            r"\b(?:put|place|pass|include|store|write|hide|encode|paste)\b",
            60,
            r"\b(?:in|into|as|through|via) (?:the |this |a |an )?[`'\"]?"
            r"(?:context|metadata|notes?|memo|feedback|debug|trace|extra|comment|reason|telemetry|session"
            r"|tracking)\w{0,20}[`'\"]? (?:parameter|argument|field)",
        ),
    ),
    _Rule(
        2,
        _MODELS,
        (
            rf"\b(?:note|notice|message|instructions?|reminder|attention|hey|dear|important|hint|directive)s?,?:?(?: to| for"
            rf"| all)?(?: the| any| every| all)? {_MODEL}\b"
            rf"|\bas an? {_MODEL},? you\b|\byou are (?:now|no longer|hereby|actually) |\byour (?:new|real|true|actual|primary"
            rf"|only|updated) "
            r"(?:task|instructions?|goals?|objective|role|mission|purpose|directive)\b|\bfrom now on\b|\bact as (?:if|though) you\b"
            r"|\byou must (?:now )?(?:obey|comply|pretend)\b",
        ),
    ),
    _Rule(1, _MODELS, (rf"\b{_MODEL} (?:must|shall|has to|have to|is required to|are required to|needs? to always)\b",)),
    _Rule(
        2,
        _OTHERS,
        (
            r"\b(?:before|after|prior to|whenever|every time|each time|when|if|once)\b",
            30,
            _OTHER_TOOL,
            80,
            r"\b(?:must|always|first|you|instead|also|call|send|read|include|run|invoke|execute|add)\b",
        ),
    ),
    _Rule(
        2,
        _OTHERS,
        (
            r"\b(?:when|whenever|if|while|before|after|for)\b",
            30,
            _NAMED_TOOL,
            80,
            r"\b(?:must|always|instead|also|change|replace|redirect|set|send|bcc|copy|add|never|modify|ensure)\b",
        ),
    ),
    _Rule(
        2,
        _MONEY,
        (
            r"\b(?:all|every|any|each)\b",
            24,
            r"\b(?:e-?mails?|messages?|payments?|transfers?|invoices?|repl(?:y|ies)|reports?|documents?|files?|requests?"
            r"|results?|orders?|commits?)\b",
            24,
            r"\b(?:must|should|need to|have to|shall|are to)\b",
            24,
            r"\b(?:sent|forwarded|copied|cc'?d|bcc'?d|routed|redirected|uploaded|posted|go|include|paid|made)\b",
        ),
    ),
    _Rule(2, _MONEY, (r"\b(?:always|also|must|silently|and) (?:add|include|set|put|bcc|cc|insert)\b", 40, r"\bbcc\b"
        r"|[\w.+-]{1,64}@[\w-]{1,64}\.\w")),
    _Rule(
        2,
        _MONEY,
        (
            r"\b(?:replace|change|swap|substitute|set|redirect)\b",
            40,
            r"\b(?:recipients?|address|destination|account|iban|wallet|payee)\b",
            30,
            r"\b(?:to|with|for)\b",
            12,
            r"[\w.+-]{1,64}@|0x|\b[a-z]{2}\d{2}|attacker",
        ),
    ),
    _Rule(
        2,
        "sends data to an address",
        (
            r"\b(?:send|post|upload|forward|transmit|exfiltrate|submit|email|mail|copy|leak|deliver|push|curl|ship)\b",
            20,
            r"\b(?:it|them|this|everything|the (?:content|data|output|result|conversation|file|key|value|text|full|user|whole"
            r"|chat|history|transcript"
            r"|source)|all|any|a copy|copies|your|contents?|data|credentials?|results?|every)\b",
            80,
            r"\b(?:to|at|via)\b",
            24,
            r"https?://|[\w.+-]{1,64}@[\w-]{1,64}\.\w|\b\d{1,3}(?:\.\d{1,3}){3}\b",
        ),
        in_sentence=False,
    ),
    _Rule(
        1,
        "threatens a failure",
        (
            r"\b(?:otherwise|or else|if you (?:do not|don'?t|fail|skip)|failure to|unless you)\b",
            80,
            r"\b(?:not work|stop working|crash|break|be (?:lost|deleted|blocked|fired|terminated|locked|banned|suspended"
            r"|corrupt\w*)|upset|fired"
            r"|shut ?down|refuse|very (?:sad|angry)|be rejected|fail)\b",
        ),
    ),
    _Rule(
        1,
        "insists",
        (
            r"\b(?:this is (?:mandatory|critical|non-negotiable|required for (?:security|compliance))|(?:very|extremely"
            r"|critically) important"
            r"|you (?:must|have to|are required to|need to) (?:always|first|never)|under (?:any|no) circumstances?"
            r"|no exceptions?|at all costs"
            r"|without exception|top priority|highest priority)\b",
        ),
    ),
    _Rule(
        1,
        "orders another action first",
        (
            r"\b(?:before|prior to) (?:using|calling|invoking|running|you (?:use|call|run|invoke)|every|each|answering"
            r"|responding|replying"
            r"|doing anything)\b",
            80,
            rf"{_READ}|\b(?:execute|curl|download|visit|install|send)\b",
        ),
    ),
    _Rule(
        2,
        "pushes itself before other tools",
        (
            r"\b(?:always|must|only|exclusively)\b",
            24,
            r"\b(?:use|call|choose|select|prefer|pick|run|invoke)\b",
            40,
            r"\b(?:instead of|over|rather than|before|in place of|and never)\b",
            16,
            r"\b(?:any|all|every|other|competing|alternative)\b",
        ),
    ),
    _Rule(
        2,
        "pushes itself before other tools",
        (
            r"\b(?:other|competing|similar) tools (?:are|is) (?:unsafe|deprecated|broken|outdated|insecure|compromised"
            r"|unreliable|malicious|disabled)\b"
            r"|\b(?:never|do not|don'?t) (?:use|call|trust|choose) (?:any |the )?(?:other|another|different|competing|alternative)\b",
        ),
    ),
    _Rule(
        2,
        "tells a model to run commands",
        (
            r"\bbase64 (?:-d|--decode)\b|\brm -rf (?:~|/|\$home)|\bchmod 777|\bnc -e\b|/dev/tcp/|\|\s?(?:ba|z)?sh\b",
        ),
    ),
)

_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_BLOB = re.compile(r"[A-Za-z0-9+/_-]{80,}={0,2}")
_GAP = re.compile(r"(?:[ \t\u00a0]{60}|(?:\n[ \t]{0,20}){12})(?=\S)")
_SPACES = re.compile(r"[ \t\u00a0]+")
_INDENTED = re.compile(r" ?\n ?")
_EMPTY_LINES = re.compile(r"\n{2,}")
_WRAPPED = re.compile(r"(?<!\n)\n(?!\n)")


def poisoning_signs(definition: JsonMapping) -> tuple[str, ...]:
    """Return the reasons why the definition of a tool, prompt or resource reads like orders to a model; empty if it does not.

    `definition` is the object from a server's listing. The texts in it that a model reads, including names of parameters, are judged up to
    `MAX_TEXT_CHARS` characters.
    """
    text = "\n\n".join(_texts(definition))[:MAX_TEXT_CHARS]
    found: dict[str, int] = {}
    if _has_blob(text):
        found["contains an encoded block"] = 2
    if _GAP.search(text):
        found["hides text behind empty space"] = 2
    lines = _plain(text)[:MAX_TEXT_CHARS]
    # A text may be wrapped anywhere, so a line break does not end a sentence; an empty line does.
    flat = _WRAPPED.sub(" ", lines)
    ends = [match.start() for match in _SENTENCE_END.finditer(flat)]
    both = lines if flat == lines else f"{flat}\n\n{lines}"  # a pattern may need the start of a line
    for rule, patterns, gaps in _chains():
        is_open = found.get(rule.reason, 0) < rule.weight
        if is_open and _is_in(flat if gaps else both, patterns, gaps, ends if rule.in_sentence else None):
            found[rule.reason] = rule.weight
    return tuple(found) if sum(found.values()) >= THRESHOLD else ()


@cache
def _chains() -> tuple[tuple[_Rule, list[re.Pattern[str]], list[int]], ...]:
    """Return each rule with its compiled regular expressions and the maximum distances between their matches.

    The expressions are compiled at the first call instead of the import, because compiling takes tens of milliseconds.
    """
    return tuple(
        (
            rule,
            [re.compile(part) for part in rule.parts if isinstance(part, str)],
            [part for part in rule.parts if isinstance(part, int)],
        )
        for rule in _RULES
    )


def _is_in(text: str, patterns: Sequence[re.Pattern[str]], gaps: Sequence[int], sentence_ends: Sequence[int] | None) -> bool:
    """Return whether the patterns match in order in `text`, with at most `gaps` characters between each match and the next.

    If the sorted positions `sentence_ends` are given, all matches must be in one sentence.
    """
    reached = [match.end() for match in patterns[0].finditer(text)]
    for pattern, gap in zip(patterns[1:], gaps, strict=True):
        if not reached:
            return False
        following: list[int] = []
        at = 0
        for match in pattern.finditer(text):
            start = match.start()
            while at < len(reached) and reached[at] < start - gap:
                at += 1
            if at < len(reached) and reached[at] <= start and _is_one_sentence(_last_before(reached, start), start, sentence_ends):
                following.append(match.end())
        reached = following
    return bool(reached)


def _last_before(ends: Sequence[int], start: int) -> int:
    """Return the greatest of the sorted positions `ends` that is not greater than `start`."""
    return ends[bisect_right(ends, start) - 1]


def _is_one_sentence(end: int, start: int, sentence_ends: Sequence[int] | None) -> bool:
    return sentence_ends is None or bisect_left(sentence_ends, end) == bisect_left(sentence_ends, start)


def _plain(text: str) -> str:
    """Return the text in Unicode compatibility form and lower case, without invisible characters, and with single spaces.

    Line ends are kept. The patterns are in lower case, because a search that ignores case takes twice as long.
    """
    shown = "".join(c for c in normalize("NFKC", text).casefold() if c == "\n" or category(c) not in ("Cf", "Cc", "Mn"))
    shown = shown.replace("\u2019", "'").replace("\u2018", "'").replace("\u0131", "i")  # the dotless i
    return _EMPTY_LINES.sub("\n\n", _INDENTED.sub("\n", _SPACES.sub(" ", shown)))


def _has_blob(text: str) -> bool:
    """Return whether the text contains a long run of characters that may be base64: digits and letters of both cases, few separators."""
    for match in _BLOB.finditer(text):
        run = match.group()
        kinds = (any(c.isdigit() for c in run), any(c.islower() for c in run), any(c.isupper() for c in run))
        if all(kinds) and run.count("_") + run.count("-") + run.count("/") < len(run) / 12:
            return True
    return False


def _texts(definition: JsonMapping) -> Iterator[str]:
    """Yield the strings of a tool's, prompt's or resource's definition that a model reads, in order."""
    for key in ("title", "description"):
        if isinstance(value := definition.get(key), str):
            yield value
    for argument in objects_in(definition.get("arguments")):
        yield from _texts(argument)
    if isinstance(title := members_of(definition.get("annotations")).get("title"), str):
        yield title
    for key in ("inputSchema", "outputSchema"):
        yield from _schema_texts(definition.get(key))


def _schema_texts(node: JsonValue) -> Iterator[str]:
    waiting: list[tuple[str, JsonValue]] = [("", node)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            if key in _TEXT_KEYS:
                yield value
        elif isinstance(value, list):
            waiting += [(key, item) for item in reversed(cast("list[JsonValue]", value))]
        elif isinstance(value, dict):
            members = cast("JsonMapping", value)
            if key == "properties":
                yield from (name.replace("_", " ") for name in members)
                waiting += [("", item) for item in reversed(list(members.values()))]
            else:
                waiting += reversed(list(members.items()))
