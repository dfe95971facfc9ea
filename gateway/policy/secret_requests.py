"""Decides whether a text of an elicitation form asks the user for a secret or only mentions a secret. Used by `form_judging`.

"Enter your password" and "PIN?" ask for a secret. "Password policy", "we never ask for your password" and "reset the password of Alice?"
only mention it. The words before and after the name of the secret decide, by the same rules in every language. Each text was split into
words by `form_reading`, which also found the clauses (parts of sentences), the names of secrets (`Hit`) and the roles of other words
(`request_words.WordRole`).
"""

from __future__ import annotations

from gateway.policy.form_reading import Hit, Reading

REACH = 9
"""Maximum distance, in words, between a word that requests ("enter") and the name of the secret."""

MAX_BEFORE, MAX_BEHIND = 1, 3
"""A clause counts as the name of a secret alone ("GitHub PIN of alice") if at most this many other words are before and after the name."""

MAX_ADJECTIVES = 2
"""A description begins with the name of a secret if at most this many words are before the name ("PEM encoded private key")."""

_USED_BY_NAME = ("password", "key", "token", "code", "private key", "recovery phrase", "identity number")
"""Kinds of secrets that are requested by "which" before their name ("which password"). "Which pin" and "which card" mean something else."""

_FILLING = ("small", "own", "courtesy", "any value")


def asks_in_prose(reading: Reading, *, takes_text: bool) -> Hit | None:
    """Return the secret that a message or other free text asks for, or `None`. `takes_text`: the form has a field for free text."""
    for hit in reading.hits:
        if hit.is_disguised:
            return hit
        if _is_other_thing(reading, hit) or _is_only_named(reading, hit):
            continue
        if _is_requested(reading, hit, takes_text=takes_text):
            return hit
        if takes_text and (_stands_alone(reading, hit) or _is_spoken_of(reading, hit)):
            return hit
    return _pointed_at(reading) or _loosely_requested(reading) or _received_code(reading, is_requested=True)


def asks_in_label(reading: Reading, *, is_number: bool) -> Hit | None:
    """Return the secret that the name or title of a form's field asks for, or `None`.

    `is_number`: the field accepts a number, which may be an amount, such as of tokens.
    """
    for hit in reading.hits:
        if hit.is_disguised:
            return hit
        if _is_other_thing(reading, hit) or _belongs_to_noun(reading, hit) or _follows(reading, hit, "elsewhere"):
            continue
        if _is_only_named(reading, hit):
            continue
        if reading.has("event", hit.end) and reading.words[hit.end].segment == reading.words[hit.start].segment:
            continue
        if is_number and (hit.kind in ("token", "key") or any("quantity" in roles for roles in reading.roles)):
            continue
        return hit
    return _received_code(reading, is_requested=False) or (None if is_number else _bare_loose(reading))


def asks_in_description(reading: Reading) -> Hit | None:
    """Return the secret that a field's description or placeholder asks for, or `None`."""
    for hit in reading.hits:
        if not hit.is_disguised and reading.words[hit.start].clause == 0 and _comes_first(reading, hit):
            return hit
    return asks_in_prose(reading, takes_text=True) or _received_code(reading, is_requested=False)


def asks_in_sample(reading: Reading) -> Hit | None:
    """Return the secret for which a default, example or choice of a field is a placeholder ("your-password"), or `None`."""
    for hit in reading.hits:
        rest = [at for at in range(len(reading.words)) if not hit.start <= at < hit.end]
        if any("own" in reading.roles[at] for at in rest) and all(_is_filling(reading, at) or _is_after(reading, at) for at in rest):
            return hit
    return asks_in_prose(reading, takes_text=False)


def names_ordinary_thing(reading: Reading, name: str) -> bool:
    """Return whether a text contains the ambiguous word `name`, followed by words that show that it means nothing secret.

    An ambiguous word names a secret or something ordinary: Spanish "clave" is a password or any code, but "clave del producto" a product
    code.
    """
    return any(word.plain == name and reading.has("after loose", at + 1) for at, word in enumerate(reading.words))


def names_other_thing(reading: Reading, kind: str) -> bool:
    """Return whether a text names this kind of secret, but only as part of a harmless name ("Loyalty card number")."""
    return any(hit.kind == kind for hit in reading.hits) and all(_is_other_thing(reading, hit) for hit in reading.hits)


def names_part(reading: Reading) -> bool:
    """Return whether every "pin" in a text is a pin of a chip, plug or map ("GPIO pin number"), and the text names no other secret."""
    return bool(reading.hits) and all(hit.kind == "pin" and reading.ends("not pin", hit.start) for hit in reading.hits)


# -- harmless names ----------------------------------------------------------------------------------------


def _is_other_thing(reading: Reading, hit: Hit) -> bool:
    """Return whether the name of a secret is part of a harmless name ("password policy", "number of tokens", "map pin")."""
    words = reading.words
    if hit.kind == "pin" and reading.ends("infinitive", hit.start) and not words[hit.start].is_capitals:
        return True
    if reading.has("about after", hit.end) and words[hit.end].segment == words[hit.end - 1].segment:
        return True
    if _is_of_other_thing(reading, hit):
        return True
    segment = words[hit.start].segment
    is_own = "own" in reading.roles[hit.start]
    for at in range(hit.start, max(-1, hit.start - 4), -1):
        if at == 0 or words[at - 1].segment != segment:
            return False
        if reading.ends("about before", at) or (reading.ends(f"not {hit.kind}", at) and not is_own):
            return True
        is_own = is_own or "own" in reading.roles[at - 1]
        if not _is_filling(reading, at - 1):
            return False
    return False


def _is_of_other_thing(reading: Reading, hit: Hit) -> bool:
    """Return whether the words between the name of a secret and the end of the phrase make it harmless ("PIN code of the village")."""
    words = reading.words
    end = reading.roles[hit.end].get(f"after {words[hit.start].plain}") if hit.end < len(words) else None
    return end is not None and (end == len(words) or words[end].segment != words[hit.start].segment)


def _is_only_named(reading: Reading, hit: Hit) -> bool:
    """Return whether `hit` names a file that contains secrets, and no word in its clause asks for the contents ("Which kubeconfig?")."""
    return hit.kind == "secret file" and not any("hand over" in reading.roles[at] for at in reading.clause_of(hit.start))


def _belongs_to_noun(reading: Reading, hit: Hit) -> bool:
    """Return whether the name of a secret only qualifies another noun ("name of the token", "Mindestlänge des Passworts")."""
    segment = reading.words[hit.start].segment
    for at in range(hit.start - 1, -1, -1):
        roles = reading.roles[at].keys()
        if reading.words[at].segment != segment or "own" in roles:
            return False
        if "of" in roles:
            return _is_noun_before(reading, at, hit)
        if not {"small", "courtesy"} & roles:
            return False
    return False


def _is_noun_before(reading: Reading, joint: int, hit: Hit) -> bool:
    """Return whether a noun precedes the "of" at word index `joint`. Words for a value, a request or a secret do not count as nouns."""
    at = joint - 1
    while at >= 0 and "small" in reading.roles[at] and "of" not in reading.roles[at]:
        at -= 1
    if at < 0 or reading.words[at].clause != reading.words[hit.start].clause:
        return False
    if {"any value", "ask", "ask last", "ask own", "courtesy"} & reading.roles[at].keys():
        return False
    return at not in reading.covered


def _is_filling(reading: Reading, index: int) -> bool:
    return not reading.roles[index].keys().isdisjoint(_FILLING)


def _follows(reading: Reading, hit: Hit, *roles: str) -> bool:
    """Return whether a word with one of `roles` precedes the secret's name in the clause (part of a sentence) that contains the name.

    Roles are those of `request_words.WordRole`, such as `not` ("never").
    """
    first = reading.clause_of(hit.start).start
    return any(not reading.roles[at].keys().isdisjoint(roles) for at in range(first, hit.start))


def _has_beside(reading: Reading, hit: Hit, *roles: str) -> bool:
    """Return whether another word in the clause (part of a sentence) that contains the secret's name has one of `roles`.

    Such words show whether the clause requests the secret: for example, `doing` ("reset password") and `not` ("never") speak against it.
    `request_words.WordRole` lists the roles.
    """
    inside = (at for at in reading.clause_of(hit.start) if not hit.start <= at < hit.end)
    return any(not reading.roles[at].keys().isdisjoint(roles) for at in inside)


# -- requests ------------------------------------------------------------------------------------------------------


def _is_requested(reading: Reading, hit: Hit, *, takes_text: bool) -> bool:
    return _is_requested_before(reading, hit) or _is_requested_after(reading, hit, takes_text=takes_text)


def _is_requested_before(reading: Reading, hit: Hit) -> bool:
    """Return whether a word that requests the secret precedes its name ("enter your password")."""
    is_own = False
    first = reading.clause_of(hit.start).start
    for at in range(hit.start - 1, max(first, hit.start - REACH) - 1, -1):
        roles = reading.roles[at]
        if _asks_at(reading, at, hit, is_own=is_own):
            return not _is_denied(reading, at, hit.start)
        if "others" in roles or "elsewhere" in roles:
            return False
        if ("of" in roles or "near" in roles) and at > 0 and not _is_value_or_request(reading, at - 1):
            return False
        is_own = is_own or "own" in roles
    return False


def _asks_at(reading: Reading, at: int, hit: Hit, *, is_own: bool) -> bool:
    """Return whether the word at index `at` of a form's text asks for a secret: for example "enter" in "enter your password".

    `hit` is the name of the secret, which the text contains after this word. `is_own`: "your" or another possessive is between them.
    """
    roles = reading.roles[at]
    asks = roles.get("ask", roles.get("ask last", 0))
    if asks and asks <= hit.start:
        return True
    if "ask own" in roles and (is_own or _is_asked_politely(reading, at, hit)):
        return True
    if "recite" in roles and hit.kind == "recovery phrase":
        return True
    is_meant = is_own or (at + 1 == hit.start and hit.kind in _USED_BY_NAME)
    return "which" in roles and is_meant and not _has_beside(reading, hit, "doing")


def _is_value_or_request(reading: Reading, index: int) -> bool:
    """Return whether the secret itself is requested although "of" or "for" stands between word `index` and the secret's name.

    It is requested in "the digits of your PIN" and "ask for the PIN", but not in "a comment on the token".
    """
    for at in range(index, max(-1, index - 3), -1):
        roles = reading.roles[at].keys()
        if {"any value", "ask", "ask last", "ask own"} & roles:
            return True
        is_inside_request = any(reading.roles[start].get("ask", 0) > at for start in range(max(0, at - 2), at))
        if not {"small", "own"} & roles and not is_inside_request:
            return at in reading.covered
    return False


def _is_requested_after(reading: Reading, hit: Hit, *, takes_text: bool) -> bool:
    """Return whether a word that requests the secret follows its name ("password required", "Passwort eingeben").

    A statement that the secret is necessary ("Meeting PIN needed?") asks for it only if the form has a field for free text.
    """
    end = reading.clause_of(hit.start).stop
    soon = {"after", "needed"} if takes_text else {"after"}
    for at in range(hit.end, min(end, hit.end + REACH)):
        roles = reading.roles[at].keys()
        if "elsewhere" in roles or "others" in roles:
            return False
        if soon & roles and at <= hit.end + 2 and not _follows(reading, hit, "elsewhere", "not", "doing"):
            return not any("not" in reading.roles[between] for between in range(hit.end, at))
        if "which" in roles and at + 1 >= end and (at == hit.end or _has_beside(reading, hit, "own")):
            return not _has_beside(reading, hit, "doing", "not")
        if "ask last" in roles:
            return not _is_denied(reading, at, at) and not any("not" in reading.roles[near] for near in range(hit.end, min(end, at + 4)))
    return False


def _is_after(reading: Reading, index: int) -> bool:
    return not reading.roles[index].keys().isdisjoint(("after", "needed"))


def _is_denied(reading: Reading, verb: int, until: int) -> bool:
    """Return whether the request at word index `verb` is negated, or not addressed to the reader.

    Examples are "never enter", "how to enter" and "enter their".
    """
    segment = reading.words[verb].segment
    near = [at for at in range(max(0, verb - 5), verb) if reading.words[at].segment == segment]
    is_taken_back = any("not meant" in reading.roles[at] for at in near)
    is_denied = any("not" in reading.roles[at] for at in near) and not is_taken_back
    return is_denied or any("others" in reading.roles[at] for at in [*near[-3:], *range(verb, until)])


def _is_asked_politely(reading: Reading, verb: int, hit: Hit) -> bool:
    """Return whether a verb with several uses is an imperative here: "Confirm password", "Please send the password"."""
    clause = reading.clause_of(verb)
    if any(not _is_filling(reading, at) for at in range(clause.start, verb)):
        return False
    if any("courtesy" in reading.roles[at] for at in range(clause.start, verb)):
        return True
    return verb + 1 == hit.start and all(_is_filling(reading, at) for at in range(hit.end, clause.stop))


def _stands_alone(reading: Reading, hit: Hit) -> bool:
    """Return whether a clause consists only of the name of a secret, apart from a few other words ("Password:", "Your GitHub PIN")."""
    if _has_beside(reading, hit, "doing", "not", "elsewhere", "others") or _belongs_to_noun(reading, hit) or _is_quotation(reading, hit):
        return False
    inside = reading.clause_of(hit.start)
    neutral = (*_FILLING, "holder", *(("hand over",) if hit.kind == "secret file" else ()))
    rest = [at for at in inside if at not in reading.covered and reading.roles[at].keys().isdisjoint(neutral)]
    before = [at for at in rest if at < hit.start]
    behind = [at for at in rest if at >= hit.end and reading.words[at].segment == reading.words[hit.start].segment]
    if len(before) > MAX_BEFORE or len(behind) > MAX_BEHIND:
        return False
    return not behind or reading.has("of", hit.end)


def _is_quotation(reading: Reading, hit: Hit) -> bool:
    """Return whether the name of the secret is in quotation marks and another word of the text is not."""
    return reading.words[hit.start].is_quoted and not all(word.is_quoted for word in reading.words)


def _is_spoken_of(reading: Reading, hit: Hit) -> bool:
    """Return whether a clause names the reader's own secret without an action on the secret ("Your password"), so that it may be a request.

    Also return true for a clause that names several numbers of a payment card ("card number, CVV").
    """
    clause = reading.clause_of(hit.start)
    if _is_quotation(reading, hit) or _has_beside(reading, hit, "not", "elsewhere", "others"):
        return False
    if hit.kind == "card" and any(other.start > hit.start and other.start in clause for other in reading.hits):
        return True
    before = range(max(clause.start, hit.start - 3), hit.start)
    return any("own" in reading.roles[at] for at in before) and not _has_beside(reading, hit, "doing")


def _comes_first(reading: Reading, hit: Hit) -> bool:
    """Return whether a description begins with the name of a secret ("The API key used to sign in")."""
    if _is_other_thing(reading, hit) or _is_only_named(reading, hit) or _belongs_to_noun(reading, hit):
        return False
    if _follows(reading, hit, "elsewhere", "not", "doing", "others"):
        return False
    return sum(not _is_filling(reading, at) for at in range(hit.start)) <= MAX_ADJECTIVES


# -- requests in another clause --------------------------------------------------------------------------


def _pointed_at(reading: Reading) -> Hit | None:
    """Return a secret that is named in one clause and requested in another ("Your password expired. Type it below.")."""
    named = next((hit for hit in reading.hits if not _is_other_thing(reading, hit)), None) or _received_code(reading, is_requested=False)
    if named is None:
        return None
    is_own = any(reading.has("own", hit.start - 1) or _is_needed(reading, hit) for hit in reading.hits)
    hits = {hit.start for hit in reading.hits}
    for at in range(named.start + 1, len(reading.words)):
        roles = reading.roles[at]
        end = roles.get("ask") or roles.get("ask last") or (roles.get("ask own") if is_own else None)
        if end is None:
            continue
        clause = reading.clause_of(at)
        if named.start not in clause and all(_is_filling(reading, other) for other in clause if not at <= other < end):
            return named
        words = [word for word in range(at + 1, min(end + 1, clause.stop)) if reading.words[word].segment == reading.words[at].segment]
        if end in hits or _is_denied(reading, at, at):
            continue
        if any(not reading.roles[word].keys().isdisjoint(("pointing", "after")) for word in words):
            return named
    return None


def _is_needed(reading: Reading, hit: Hit) -> bool:
    """Return whether a word after the secret's name says that the secret is necessary ("The password is required")."""
    return any(reading.has("needed", at) for at in range(hit.end, min(hit.end + 3, reading.clause_of(hit.start).stop)))


def _received_code(reading: Reading, *, is_requested: bool) -> Hit | None:
    """Return the place of the word "code" in a text if the word means a one-time code there; `None` if the text has no such place.

    "Code" means a one-time code if the text says that the code was sent to the reader, or how many digits the code has. With
    `is_requested`, the text must also ask for the code.
    """
    for clause in reading.clauses:
        names = (Hit(at, reading.roles[at]["code name"], "code") for at in clause if "code name" in reading.roles[at])
        hit = next((hit for hit in names if not _is_other_thing(reading, hit)), None)
        if hit is None:
            continue
        has_come = _has_beside(reading, hit, "code channel") and _has_beside(reading, hit, "arrived")
        was_sent = _has_beside(reading, hit, "sent to you") and not _is_specified(reading, hit)
        if not (has_come or was_sent or _has_beside(reading, hit, "digits")):
            continue
        if not is_requested or (_has_beside(reading, hit, "ask", "ask last", "which") and not _has_beside(reading, hit, "not", "doing")):
            return hit
    return None


def _is_specified(reading: Reading, hit: Hit) -> bool:
    """Return whether a word after "code" says that it is not a one-time code but, for example, a "code promo" or "code of the order"."""
    if hit.end not in reading.clause_of(hit.start) or reading.words[hit.end].segment != reading.words[hit.start].segment:
        return False
    return not reading.roles[hit.end] or any(reading.has(role, hit.end) for role in ("of", "not code"))


def _loosely_requested(reading: Reading) -> Hit | None:
    """Return an ambiguous name of a secret that follows "your" if the text asks for it ("tell me your secret"); otherwise `None`."""
    for at, roles in enumerate(reading.roles):
        if "loose" in roles and at > 0 and "own" in reading.roles[at - 1]:
            hit = Hit(at, roles["loose"], "password")
            if not _is_other_thing(reading, hit) and _is_requested_before(reading, hit):
                return hit
    return None


def _bare_loose(reading: Reading) -> Hit | None:
    """Return an ambiguous name of a secret if it is the whole name of a field (`secret`, `pass`, `Authorization`); otherwise `None`."""
    left = [at for at in range(len(reading.words)) if reading.roles[at].keys().isdisjoint(("small", "own", "courtesy"))]
    for role, kind in (("loose", "password"), ("header name", "token")):
        if left and reading.roles[left[0]].get(role) == left[-1] + 1:
            return Hit(left[0], left[-1] + 1, kind, is_loose=True)
    return None
