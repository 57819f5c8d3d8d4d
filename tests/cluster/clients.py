# SPDX-License-Identifier: Apache-2.0
"""Clients that know every token that they must receive, and count what becomes of their requests."""

import collections
import itertools
import threading
import time

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
from fake_server import fnv1a

PATIENCE = 120  # seconds that anything awaited may take


class Script:
    """What the client with this number asks for, and what it may get: of a session turn after turn, each of a prompt and a reply, and
    of a request without a session. The last turn but one only feeds tokens; one reply is longer than what is written to the store at
    once."""

    REPLIES = (50, 1500, 0, 300)  # tokens

    def __init__(self, number, lones):
        """lones: clients of servers that nothing disturbs and that have no store, one for each numerics id."""
        self.seed = number
        self.prompts = [[1 + (number + turn) % 30, 2, 3 + turn] for turn in range(len(self.REPLIES))]
        self.ends = list(itertools.accumulate(len(prompt) + count for prompt, count in zip(self.prompts, self.REPLIES)))
        courses = [Course()]
        for prompt, count in zip(self.prompts, self.REPLIES):
            courses = [Course(course, prompt, reply) for course in courses for reply in self.next_replies(lones, course, prompt, count)]
        self.courses = courses
        self.alone = distinct(tokens_of(lone.generate(self.prompts[0], seed=self.seed, max_tokens=self.REPLIES[1])) for lone in lones)

    def next_replies(self, lones, course, prompt, count):
        """What each server answers whose session was given all that the course has so far."""
        if not count:
            return [[]]
        replies = []
        for lone in lones:
            with lone.open_session(seed=self.seed) as session:
                session.append(course.tokens)
                replies.append(tokens_of(session.generate(prompt, max_tokens=count)))
        return distinct(replies)


class Course:
    """A way that a session may take, where the replies of its turns are drawn with one numerics id or another."""

    def __init__(self, before=None, prompt=(), reply=()):
        """A course, and one further turn."""
        self.replies = [*before.replies, list(reply)] if before else []
        self.tokens = [*before.tokens, *prompt, *reply] if before else []
        self.hashes = {}

    def hash_at(self, position):
        if position not in self.hashes:
            self.hashes[position] = fnv1a(self.tokens[:position])
        return self.hashes[position]


def distinct(replies):
    return [list(reply) for reply in dict.fromkeys(map(tuple, replies))]


def tokens_of(stream):
    return [int(token) for part in stream for token in part.tokens]


class Tally:
    """What became of all requests. Thread: any."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.errors = collections.Counter()  # that the library handed to its caller, by call and reason
        self.resumes = []  # seconds from the loss of a reply to what came next of it
        self.first_tokens = {True: [], False: []}  # seconds until the first token of a reply on a session, by whether it was taken over
        self.faults = []  # what must not happen, in words

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def error(self, method, error):
        with self.lock:
            self.errors[f"{method}: {error.reason or error.code.name}"] += 1

    def resumed(self, seconds):
        with self.lock:
            self.resumes.append(seconds)

    def fault(self, what, text):
        with self.lock:
            self.counts[what] += 1
            self.faults.append(f"{what}: {text}")

    def began(self, seconds, taken_over):
        with self.lock:
            self.first_tokens[taken_over].append(seconds)


class Client:
    """One client in a thread of its own, which asks again and again until it is stopped."""

    def __init__(self, number, target, script, tally, timeout):
        """timeout: seconds of each call."""
        self.name = f"{type(self).__name__} {number}"
        self.script, self.tally, self.timeout = script, tally, timeout
        self.library = rivulet.Client(target)
        self.finished = 0  # turns
        self.lost_at = None
        self.durability = None
        self.start = 0  # of the turn
        self.method = ""  # of the last call
        self.stopping = threading.Event()
        self.gives_up = False  # what it has begun
        self.failure = None
        self.doing = ""
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.observe_calls()
        self.thread.start()

    def run(self):
        try:
            while not self.stopping.is_set():
                self.play()
        except BaseException as error:
            self.failure = error
            raise

    def stop(self):
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), f"{self.name} has not ended: {self.doing}"
        self.library.close()

    def observe_calls(self):
        """Sees what the library does not show: every call on a session."""
        reply = self.library._calls.reply

        def observed(method, message, options):
            self.tally.count("requests on sessions")
            self.method = method
            if method == "append" and message.session.position < self.start:  # by the library, or by go_to()
                self.tally.count("tokens given again", len(message.tokens.ids))
            return reply(method, message, options)

        self.library._calls.reply = observed

    def observe_stream(self, stream):
        """Sees what the library does not show: lost calls."""
        reader = stream._reader
        wait, read = reader.wait, reader.read

        def observed_wait(error):
            self.lost_at = self.lost_at or time.monotonic()
            seconds = wait(error)
            self.tally.count("lost calls")
            return seconds

        def observed_read(message):
            if self.lost_at is not None:
                self.tally.resumed(time.monotonic() - self.lost_at)
                self.lost_at = None
            return read(message)

        reader.wait, reader.read = observed_wait, observed_read

    def receive(self, stream, replies, what):
        """Returns a whole reply, which must be one of `replies`. Errors: those of the library."""
        self.tally.count("requests on sessions", isinstance(self, Conversation))
        self.observe_stream(stream)
        self.method = "generate"
        got, alike = [], replies
        with stream:
            for part in stream:
                begin = len(got)
                got += [int(token) for token in part.tokens]
                alike = [reply for reply in alike if reply[begin : len(got)] == got[begin:]]
                if not alike:
                    self.tally.fault("tokens wrong", f"{self.name}, {what}, behind {begin} tokens: {got[begin:][:8]}")
                    alike = replies
        if isinstance(self, Conversation):
            self.durability = stream.durability
        if len(got) != len(replies[0]):
            self.tally.fault("tokens wrong", f"{self.name}, {what}: {len(got)} tokens instead of {len(replies[0])}")
        self.tally.count("tokens", len(got))
        self.tally.count("replies with other numerics", got != replies[0])
        return got

    def failed(self, error):
        self.lost_at = self.lost_at or time.monotonic()
        self.tally.error(self.method, error)
        self.tally.count("deadlines passed", isinstance(error, rivulet.DeadlineExceeded))
        self.doing += f"; {self.method}: {error.reason or error.code.name}"

    def ended(self):
        self.lost_at = None
        self.finished += 1
        self.tally.count("turns")


class Lone(Client):
    """Requests without a session."""

    def play(self):
        self.doing = "a request"
        script = self.script
        stream = self.library.generate(
            script.prompts[0], seed=script.seed, max_tokens=len(script.alone[0]), timeout=self.timeout
        )
        try:
            self.receive(stream, script.alone, "a request without a session")
        except rivulet.RivuletError as error:
            self.failed(error)
            self.stopping.wait(0.1)
        else:
            self.ended()


class Conversation(Client):
    """Sessions, one after another."""

    replying = False  # a reply on the session runs

    def __init__(self, number, target, script, tally, timeout, leaves):
        """leaves: turns that are asked of whichever replica the balancer takes."""
        self.leaves = leaves
        super().__init__(number, target, script, tally, timeout)

    def play(self):
        self.session, self.durable, self.is_behind = None, 0, False
        self.courses = self.script.courses  # that agree with what was received
        self.place = ""  # cookie of the replica that answered the last turn
        for turn in range(len(self.script.prompts)):
            self.doing = f"turn {turn}"
            tries = 0
            while not self.try_turn(turn, self.timeout * 2 ** min(tries, 3)):
                tries += 1
                if self.gives_up:
                    return
                self.stopping.wait(0.1)  # between two tries
            self.ended()
        self.tally.count("sessions")
        try:
            self.session.close(timeout=self.timeout)
        except rivulet.RivuletError as error:
            self.failed(error)

    def try_turn(self, turn, timeout):
        """Whether the turn has ended well. If not, the session may be anywhere from the turn's start on, or behind what was durable."""
        start = self.start = self.script.ends[turn - 1] if turn else 0
        prompt, count = self.script.prompts[turn], self.script.REPLIES[turn]
        self.durability = None
        try:
            self.go_to(start, timeout)
            if turn in self.leaves:
                self.leave_replica(start, timeout)
            if count:
                self.replying = True
                began = time.monotonic()
                stream = self.session.generate(prompt, max_tokens=count, timeout=timeout)
                self.observe_start(stream, began)
                reply = self.receive(stream, distinct(course.replies[turn] for course in self.courses), f"turn {turn}")
                self.courses = [course for course in self.courses if course.replies[turn] == reply] or self.courses
            else:
                self.durability = self.session.append(prompt, timeout=timeout).durability
            self.place = self.session.cookie
        except rivulet.RivuletError as error:
            self.failed(error)
            if isinstance(error, rivulet.NotFound) and self.session is not None:
                self.lost(error)
            self.is_behind = isinstance(error, (rivulet.OutOfRange, rivulet.FailedPrecondition))
            return False
        finally:
            self.replying = False
        self.acknowledged(self.script.ends[turn])
        return True

    def observe_start(self, stream, began):
        """Notes when the first token comes, and whether another replica than that of the last turn sends it."""
        read, place = stream._reader.read, self.place

        def observed_read(message):
            nonlocal place
            if place and message.tokens:
                self.tally.began(time.monotonic() - began, self.session.cookie != place)
                place = ""  # the further messages
            return read(message)

        stream._reader.read = observed_read

    def acknowledged(self, end):
        """The server has confirmed all up to `end`, and said what of it is durable."""
        if self.durability is None:
            self.tally.count("without durability")
        elif self.durability.durable:
            self.tally.count("durable")
            self.durable = self.durability.position
            if self.durable != end:
                self.tally.fault("durability wrong", f"{self.name}: durable up to {self.durable} instead of {end}")
        else:
            self.tally.count("not durable")
            self.durable = self.durability.position

    def go_to(self, start, timeout):
        """Brings the session to where the turn begins, with as few calls as it takes. Errors: those of the library."""
        if self.session is None:
            self.session, self.durable = self.library.open_session(seed=self.script.seed, timeout=timeout), 0
        elif self.is_behind:
            self.session = self.found(self.durable, cookie=self.session.cookie, timeout=timeout)
        if self.session.position > start or self.session._ahead:
            self.durable = min(self.durable, start)
            self.session.rewind(position=start, timeout=timeout)
        elif self.session.position < start:
            missing = self.courses[0].tokens[self.session.position : start]
            self.session.append(missing, timeout=timeout)

    def found(self, least, **options):
        """The session as the store has it, which must be at `least` or behind."""
        found = self.library.session(self.session.id, **options)
        if found.position < least:
            self.tally.fault("durable and lost", f"{self.name}: at {found.position}, {least} were durable")
        if found.sequence_hash not in {course.hash_at(found.position) for course in self.courses}:
            self.tally.fault("tokens wrong", f"{self.name}: the session has others at {found.position}")
        self.durable = min(self.durable, found.position)
        return found

    def lost(self, error):
        """The session does not exist."""
        if self.durable > 0:
            self.tally.fault("durable and lost", f"{self.name}: {self.durable} tokens were durable: {error.reason}")
        self.tally.count("sessions lost")
        self.session = None

    def leave_replica(self, start, timeout):
        """Goes on without the cookie of the replica that has the session, if the store has all of it."""
        if self.durable < start:
            return
        self.library._calls.cookies.forget(self.session.id)
        self.session = self.found(start, timeout=timeout)
        self.go_to(start, timeout)  # where the store has lost some of it
