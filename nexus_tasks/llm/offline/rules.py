"""Find sentences with which a user tells an agent how to work from now on, such as "Never mock the database".

A request of the moment, such as "Now run the migration", is no rule. Every rule of this module looks at one sentence
alone. The patterns are for English. ``tests/unit/test_spoken_rules.py`` has the lines with which they were tuned, and
as many that were held out.
"""

from __future__ import annotations

import re

LONGEST = 300  # characters; a longer sentence is a description, not a rule


def _rule(*alternatives: str) -> re.Pattern[str]:
    return re.compile("(?:" + "|".join(alternatives) + ")", re.IGNORECASE)


# Words before the rule itself: "No, please don't …", "And from now on, …".
_OPENING = _rule(
    r"(?:(?:no,|(?:ok|okay|yes|and|also|but|so|hey|good|right|wait|please|well|hm+|great|thanks),?)\s+){0,4}"
)
# A sentence with one of these speaks of the moment, or of one thing that is at hand.
_MOMENT = _rule(
    r"\b(?:now|yet|again|today|tonight|tomorrow|this time|right now|at the moment|for the moment|just once|here for)\b",
    r"\bfor now\b|\buntil (?:i|we|then|it)\b|\bwhen you(?:['’]re| are) (?:done|ready|finished)\b|\bstill\b",
    r"\b(?:this|that|these|those) (?:file|line|test|branch|one|function|error|warning|token|version|time)\b",
    r"\b(?:this|that) (?:commit|page)\b",
    r"\b(?:the (?:first|second|third|other|last|next) (?:one|option|file|test))\b",
)
# Sentences that begin like a rule, and are none: "Never mind", "Don't worry".
_IDIOM = _rule(
    r"never mind\b|always the\b|don['’]?t (?:worry|forget|bother|mind|know|(?:do|touch) (?:that|this|it))\b",
    r"stop (?:the|it|that|this|here|now|there|everything|working|for)\b|stop\W*$",
    r"no (?:tests?|errors?|need|idea|problem)\b",
    r"avoid (?:that|this|it)\b|use (?:it|this|that|these|those|the)\b|keep (?:going|it|the|this|that|on)\b",
    r"be careful\b|only (?:the|one|two)\b|prefer (?:the|this|that)\b|ask (?!before|me|first)",
)
# A task for the agent: what is at hand has an article or a name. Only a word that makes it lasting makes it a rule.
_EVER = _rule(
    r"\b(?:always|never|ever|from now on|in (?:the )?future|going forward|whenever|every ?time|each time)\b",
    r"\b(?:(?:before|after|in|on|for|with|at) (?:every|each|any)|unless i|everywhere|as a rule|in general)\b",
)
_VERBS = (
    "use|run|write|add|put|keep|make|show|ask|check|call|name|commit|push|deploy|test|format|document|explain|answer|"
    "reply|speak|talk|respond|update|bump|prefer|avoid|follow|include|mention|read|look|open|create|delete|remove|merge"
    "|squash|rebase|import|log|return|start|begin|end|tell|give|stick|limit|sort|remember|make sure"
)
_IMPERATIVE = re.compile(rf"(?:(?:please|always|never) ){{0,2}}(?:{_VERBS})\b", re.IGNORECASE)
_RULE = _rule(
    # "Never mock the database", "Always run …", "Don't ever …", "Do not use …", "Stop adding …", "Avoid …".
    r"(?:always|never) (?!the\b|a\b|an\b|been\b|had\b|was\b|got\b)\w+",
    r"(?:do not|don['’]?t|dont) (?:ever |always |just )?\w+",
    r"stop \w+ing\b|quit \w+ing\b|avoid \w+|no more \w+|refrain from\b",
    r"you(?: must| should| can| may|['’]ll)?(?: not|n['’]t)? (?:always|never)\b(?! (?:find|get|know|see))",
    r"you (?:must|should|may|can)(?:\s?n['’]t| ?not)\b(?! have\b)|you (?:don['’]t|do not) (?:need|have) to\b",
    # "Use pnpm, not npm", "Use British spelling in …", "We use tabs here, not spaces", "Prefer X over Y".
    r"(?:we |only |just )?use [^,.;]{1,80},? (?:not|instead of|rather than|over|never)\b",
    r"(?:only use|use only|use (?:british|american|english|conventional|type|absolute|relative|strict|semantic))\b",
    r"use (?!port\b)[\w/+.-]+(?: [\w/+.-]+){0,3} (?:everywhere|only|for (?:all|any|new|every)\b|in (?:the )?\w+s\b)",
    r"(?:i )?prefer \w[^.;]{0,80} (?:over|to|instead of|rather than|not)\b",
    # "We never deploy on Fridays", "We always squash …", "I hate it when you …", "I'd rather you …".
    r"we (?:always|never|don['’]t|do not|only) (?!got\b|saw\b|had\b|know\b|have\b|get\b|see\b|need\b)\w+",
    r"i (?:hate|dislike|love|like) it when you\b|i['’]d (?:rather|prefer)\b|i would (?:rather|prefer)\b",
    r"i (?:don['’]t|do not) (?:want|like|need|expect) (?!this\b|that\b|it\b|to know\b)\w+|i (?:hate|dislike) \w+",
    r"i (?:want|need|expect) you to (?:always|never|not)\b",
    # "Keep your answers short", "Be brief", "Answer in German", "Call me Ann", "Speak to me informally".
    r"keep (?:your |all |the )?(?:answers|replies|responses|explanations|commits|functions|messages|prs|pull requests"
    r"|summaries|changes|comments|files|tests|it (?:short|simple|brief))\b",
    r"be (?:more |less |very )?(?:brief|concise|terse|short|direct|honest|precise|formal|informal|polite|verbose)\b",
    r"(?:answer|reply|respond|write|speak|talk)(?: to me| with me)? (?:in [A-Za-z]+\W*$|(?:in)?formally|briefly|only)",
    r"(?:answer|reply|respond|write) (?:\w+ ){0,3}in (?:english|german|french|spanish|imperative|the imperative)\b",
    r"call me \w+\W*$",
    # "No emojis in …", "No comments, please", "Tests before code".
    r"no (?!one\b|longer\b|way\b|doubt\b)\w+ing?\w* (?:in|on|for|at)\b",
    r"no \w+s (?:in|on|for|at|please|unless|without)\b",
    r"no \w+s,? please\b",
    r"(?:write|run|show|add) (?:the |a |your )?(?:failing )?tests? (?:before|first)\b",
    r"ask (?:me )?(?:first )?(?:before|first)\b",
    r"when(?:ever)? (?:you|in doubt|i say|something|a test)\b[^.;]{0,80}, (?:always |never |please )?\w+",
)
# What must be, of anything but a person: "Integration tests must hit a real database", "Comments should say why".
_NORM = _rule(
    r"(?:all |the |every |each |our |new )?[a-z]+(?: [a-z]+){0,2} (?:must|should|need to|have to|has to)(?: not|"
    r" never)? (?!have (?:been|missed)\b)\w+",
    r"[a-z]+(?: [a-z]+){0,2} (?:have|has|may have|gets?|go(?:es)?|belongs?|lives?) (?:at most|at least|no more than|in"
    r" [\w/.-]+,? (?:not|never))\b",
)
_NO_SUBJECT = _rule(r"(?:i|it|that|this|there|he|she|they|you|what|which|who|how|why|something|someone|we)\b")


def is_rule(sentence: str) -> bool:
    """Whether ``sentence`` tells an agent how to work in general, and not only now."""
    if len(sentence) > LONGEST or "?" in sentence[-4:]:
        return False
    opening = _OPENING.match(sentence)
    core = sentence[opening.end() :] if opening else sentence
    lasting = _EVER.search(core)
    if _IDIOM.match(core) or (_MOMENT.search(core) and not _FROM_NOW_ON.match(core)):
        return False
    if lasting and _lasting_order(core):
        return True
    return bool(_RULE.match(core)) or (bool(_NORM.match(core)) and not _NO_SUBJECT.match(core))


_FROM_NOW_ON = _rule(r"(?:from now on|in (?:the )?future|going forward|as a rule|in general)\b")
_CONDITION = re.compile(
    r"(?:(?:when|whenever|every ?time|each time|before|after|for|if|in) (?:you |we |each |every |any )?[^,;]{1,80}, )",
    re.IGNORECASE,
)


def _lasting_order(core: str) -> bool:
    """Whether ``core`` is an order that a word such as "always" or "before every" makes lasting."""
    if _FROM_NOW_ON.match(core):
        return True
    condition = _CONDITION.match(core)
    order = core[condition.end() :] if condition else core
    return bool(_IMPERATIVE.match(order))


# An order for the task at hand begins with one of these: "Show me the diff", "Please fix the failing test".
_ORDER = _rule(
    rf"(?:{_VERBS})\b",
    r"(?:fix|rename|split|move|revert|undo|redo|commit|build|install|restart|rerun|retry|try|change|replace|remove|drop"
    r"|clean|refactor|extract|implement|continue|go (?:on|ahead|back)|wait|skip|leave|let['’]?s|do|see|find|search|grep"
    r"|list|print|compare|review|debug|investigate|figure|help|set|turn|switch|copy|generate|upgrade|downgrade|finish"
    r"|complete|deploy|release|publish|tag|close|assign|draft|shorten|simplify|sort|apply|resolve|stash|pull|fetch)\b",
    # Any other verb: "Cherry-pick the fix", but not "When the build is red".
    r"(?!(?:after|all|as|at|because|before|both|by|during|for|from|if|in|like|of|on|only|our|over|since|so|than|though"
    r"|under|until|when|where|while|with|without|we|i|my|not|half|what|which)\b)[a-z]{2,20}(?:-[a-z]{2,20})?"
    r" (?:the|it|this|that|these|those|them|me|everything)\b(?! (?:is|are|was|were)\b)",
    r"(?:can|could|would|will) you\b|(?:i|we) (?:need|want) you to\b|now\b|next\b|again\b",
)
# "Release 2.4 is planned for March" begins with such a word too, and states something.
_STATES = re.compile(
    r"\w{1,40} (?!(?:the|that|this|these|those|it|if|whether|what|why|how|when|who|me|us|all|everything|an?|my|our"
    r"|your)\b)(?:\S{1,40} ){0,4}?(?:is|are|was|were|has|have|will|must|goes|lives?|runs|happens?|opens?"
    r"|starts|ends)\b",
    re.IGNORECASE,
)
# What is so for the moment: "I must leave at five", "that file is a mess".
_AT_HAND = _rule(
    r"(?:i|we)(?:['’]m| am| are|['’]re| have| must|['’]ll| will| need)?(?: got)?(?: to)? (?:leave|leaving|go|going|stop"
    r"|stopping|run|running late|head|heading|eat|sleep|log off|be (?:right )?back)\b",
    r"there(?:['’]s| is| are) (?:an?|no|some|still|another)\b",
    r"(?:hm+,? )?(?:that|this|it|these|those)\b(?! (?:project|repository|repo|company|team|service)\b)",
    r"(?:all |the |both )?(?:tests?|build|ci|pipeline|page|server|app|site|script|command|suite|lint\w*|types?)"
    r" (?:is|are|still|fails?|failed|pass(?:es|ed)?|works?|hangs?|crash\w*|times? out|broke)\b[^,;:]{0,40}\W*$",
)
# Lines about a tool call of the agent (see transcripts/claude_code.py), and answers that only confirm.
_CHATTER = _rule(
    r"(?:ran|read|edited|wrote|bash|grep|glob|task|error): ?|(?:edited|wrote|reading|running|editing) [/\w.-]+\W*$",
    r"(?:ok|okay|done|noted|understood|great|got it|sure|will do|all (?:green|pass))\b",
    r"(?:i['’]?(?:ve| have)|i) (?:just )?(?:saved|noted|remembered|stored|recorded|written|updated)\b|saved\b",
)


def is_of_the_moment(sentence: str) -> bool:
    """Whether a sentence is of no use after the work at hand: an order, a state of the moment, or chatter.

    A rule is never of the moment.
    """
    head = sentence[:LONGEST]
    if is_rule(head):
        return False
    opening = _OPENING.match(head)
    core = head[opening.end() :] if opening else head
    order = _ORDER.match(core) and not _STATES.match(core)
    return bool(_CHATTER.match(head) or order or _AT_HAND.match(core))
