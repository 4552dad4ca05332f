# A conversation of Python's websockets with the hub whose URL is the argument. It prints what it
# has seen, a line each; an exception is a failure. It runs with versions from 10 on.
import asyncio
import json
import sys

import websockets
from websockets.exceptions import ConnectionClosed

url = sys.argv[1]


async def ask(c, answer, **frame):
    await c.send(json.dumps(frame))
    while True:  # OK and EVENT come in any order
        came = json.loads(await c.recv())
        if came["op"] == answer:
            return came


async def closed(c):
    try:
        while True:
            await c.recv()
    except ConnectionClosed as e:
        return e.rcvd and e.rcvd.code


async def talk():
    # Compression is offered, and is not taken.
    async with websockets.connect(url, compression="deflate", max_size=4 << 20) as c:
        print("extensions", (c.protocol if hasattr(c, "protocol") else c).extensions, "subprotocol", c.subprotocol)
        print("auth", (await ask(c, "OK", op="AUTH", token="", corr="1"))["op"])
        print("tail", (await ask(c, "OK", op="SUBSCRIBE", topic="clients.python", corr="2"))["op"])
        for text in ["x" * n for n in (0, 125, 126, 65400, 65536, 1000000)] + ["ü€😀" * 20000]:
            event = await ask(c, "EVENT", op="PUBLISH", topic="clients.python", payload=text)
            print("came back", len(text), event["op"], event["event"]["payload"] == text)
        # An iterable is sent in fragments, here one for each character.
        await c.send(iter('{"op":"NOPE","corr":"ü€😀"}'))
        while (answer := json.loads(await c.recv()))["op"] != "ERR":
            pass  # the OK of the last publish
        print("fragments", answer["corr"])
        for data in (b"", b"\x00\xff" * 62):
            await (await c.ping(data))
            print("pong", len(data))
        await c.send("x" * (2 << 20))
        print("too long", await closed(c))


async def send_much(c):
    for _ in range(66):  # just above 64 KiB
        await c.send("x" * 1000)


async def end(name, say):
    async with websockets.connect(url) as c:
        try:
            await say(c)
        except ConnectionClosed:
            pass  # while it still sends
        print(name, await closed(c))


async def main():
    await talk()
    await end("binary", lambda c: c.send(b"\x01"))
    await end("binary in fragments", lambda c: c.send(iter([b"\x01", b"\x02"])))
    await end("too long before AUTH", lambda c: c.send("x" * 20000))
    await end("too much before AUTH", send_much)
    await end("a code of its own", lambda c: c.close(4321, "€" * 41))


asyncio.run(main())
