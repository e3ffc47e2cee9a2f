"""Numbered messages between two procs, and a page of files that tells after any death what was received. No pytest here."""

import asyncio
import os
from collections import deque

import numpy as np

from roost import Actor, ActorDied, context, endpoint

# What became of a number, as its sender knows it.
BROADCAST, ANSWERED, NOT_EXECUTED, MAYBE_EXECUTED = range(4)
WINDOW = 500


class Page:
    """Arrays in files: what was written is there whoever is killed."""

    def __init__(self, folder, count):
        mode = "r+" if os.path.exists(f"{folder}/lives") else "w+"
        # By number: the life that received it, from 1.
        self.lives = np.memmap(f"{folder}/lives", np.uint32, mode, shape=(count,))
        # Numbers received twice, and numbers received after a later one.
        self.wrong = np.memmap(f"{folder}/wrong", np.uint32, mode, shape=(2,))
        # The number that the sender sends next.
        self.next = np.memmap(f"{folder}/next", np.uint64, mode, shape=(1,))


class Receiver(Actor):
    def __init__(self, folder, count):
        self.page = Page(folder, count)
        self.last = -1

    def took(self, number, life):
        page = self.page
        if page.lives[number]:
            page.wrong[0] += 1
        if number <= self.last:
            page.wrong[1] += 1
        page.lives[number] = life
        self.last = number

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def take(self, number):
        self.took(number, context().incarnation + 1)
        return number

    @endpoint
    async def note(self, number):
        self.took(number, context().incarnation + 1)

    @endpoint
    async def take_from(self, number, life):
        self.took(number, life)
        return number

    @endpoint
    async def note_from(self, number, life):
        self.took(number, life)


class Sender(Actor):
    def __init__(self, folder, count):
        self.page = Page(folder, count)

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def send(self, receiver, count):
        """Send all numbers, every other as a call: what became of each, the life that failed it, and of the dead letters
        how many surely were not executed and how many may have been."""
        outcomes, lives = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
        window = deque()

        async def settle():
            number, reply = window.popleft()
            try:
                assert await reply == number
                outcomes[number] = ANSWERED
            except ActorDied as death:
                outcomes[number] = MAYBE_EXECUTED if death.maybe_executed else NOT_EXECUTED
                lives[number] = death.failure.incarnation + 1

        for number in range(count):
            if number % 2:
                window.append((number, receiver.take.call_one(number)))
                if window[-1][1].done():
                    await asyncio.sleep(0.005)  # it is down: do not spend the numbers on that
                if len(window) == WINDOW:
                    await settle()
            else:
                await receiver.note.broadcast(number)
        while window:
            await settle()
        maybe = ["may have been executed" in letter.reason for letter in context().job.dead_letters]
        return outcomes, lives, (maybe.count(False), maybe.count(True))

    @endpoint
    async def send_on(self, receiver, count):
        """Send the rest of the numbers, with the life that sends them."""
        life, window = context().incarnation + 1, deque()
        for number in range(int(self.page.next[0]), count):
            self.page.next[0] = number + 1
            if number % 2:
                window.append(receiver.take_from.call_one(number, life))
                if len(window) == WINDOW:
                    await window.popleft()
            else:
                await receiver.note_from.broadcast(number, life)
        while window:
            await window.popleft()
