"""The text rack/small learns from: short instructions and their answers, made from a seed.

    python tasks.py [SEED]        # prints a few of each task

An example is (task, prompt, answer). Whether a prompt is held out is a property of its own text (`held_out`), so no list
has to be kept and nothing that trains can meet what is evaluated.
"""
import hashlib
import random
import sys

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# What it is taught to know. A fact has one answer and is asked in every way of its kind.
CAPITALS = dict(
    France="Paris", Italy="Rome", Spain="Madrid", Germany="Berlin", Japan="Tokyo", China="Beijing", Egypt="Cairo",
    Greece="Athens", Norway="Oslo", Sweden="Stockholm", Finland="Helsinki", Denmark="Copenhagen", Poland="Warsaw",
    Austria="Vienna", Hungary="Budapest", Portugal="Lisbon", Ireland="Dublin", Cuba="Havana", Peru="Lima", Chile="Santiago",
    Kenya="Nairobi", India="Delhi", Turkey="Ankara", Russia="Moscow", Canada="Ottawa", Iceland="Reykjavik")
COLOURS = dict(grass="green", snow="white", coal="black", blood="red", milk="white", lemon="yellow", tomato="red",
               cucumber="green", banana="yellow", night="black", frog="green", cherry="red", chalk="white", soot="black")
SOUNDS = dict(dog="woof", cat="meow", cow="moo", sheep="baa", duck="quack", pig="oink", horse="neigh", lion="roar",
              bee="buzz", snake="hiss", owl="hoot", frog="croak", hen="cluck", mouse="squeak", wolf="howl")
OPPOSITES = dict(hot="cold", big="small", up="down", left="right", day="night", fast="slow", old="new", high="low",
                 open="closed", hard="soft", wet="dry", rich="poor", loud="quiet", full="empty", light="dark", early="late")

FACTS = [
    (CAPITALS, ["What is the capital of {}?", "Capital of {}?", "Name the capital of {}.", "{} has which capital?",
                "Which city is the capital of {}?"]),
    (COLOURS, ["What colour is {}?", "Colour of {}?", "Name the colour of {}.", "{} has which colour?"]),
    (SOUNDS, ["What does a {} say?", "Sound of a {}?", "Name the sound of a {}.", "A {} makes which sound?"]),
    (OPPOSITES, ["What is the opposite of {}?", "Opposite of {}?", "Name the opposite of {}.", "{} is the opposite of what?"]),
]


def letters(r, low, high, alphabet=LETTERS):
    return [r.choice(alphabet) for _ in range(r.randint(low, high))]


def distinct(r, low, high):
    return r.sample(LETTERS, r.randint(low, high))


def add(r):
    a, b = r.randrange(100), r.randrange(100)
    return r.choice(["{} + {} =", "Add {} and {}.", "What is {} plus {}?"]).format(a, b), str(a + b)


def subtract(r):
    a, b = sorted((r.randrange(100), r.randrange(100)), reverse=True)
    return r.choice(["{} - {} =", "What is {} minus {}?"]).format(a, b), str(a - b)


def copy(r):
    x = " ".join(letters(r, 3, 8))
    return r.choice(["Copy: {}", "Repeat: {}"]).format(x), x


def reverse(r):
    x = letters(r, 3, 7)
    return r.choice(["Reverse: {}", "Backwards: {}"]).format(" ".join(x)), " ".join(reversed(x))


def sort(r):
    x = distinct(r, 3, 6)
    return r.choice(["Sort: {}", "Put in order: {}"]).format(" ".join(x)), " ".join(sorted(x))


def count(r):
    some = "".join(distinct(r, 2, 4))
    x, c = letters(r, 3, 9, some), r.choice(some)
    return r.choice(["Count {}: {}", "How many {}: {}"]).format(c, " ".join(x)), str(x.count(c))


def length(r):
    return f"How long: {' '.join(x := letters(r, 1, 9))}", str(len(x))


def first(r):
    x = letters(r, 2, 7)
    return f"First of: {' '.join(x)}", x[0]


def last(r):
    x = letters(r, 2, 7)
    return f"Last of: {' '.join(x)}", x[-1]


def upper(r):
    x = " ".join(letters(r, 2, 7))
    return f"Upper case: {x}", x.upper()


def largest(r):
    x = r.sample(range(100), r.randint(2, 4))
    return f"Largest of: {' '.join(map(str, x))}", str(max(x))


def after(r):
    x = r.randrange(25)
    if r.random() < 0.5:
        return f"What comes after {LETTERS[x]}?", LETTERS[x + 1]
    x = r.randrange(999)
    return f"What comes after {x}?", str(x + 1)


def fact(r):
    table, ways = r.choice(FACTS)
    key = r.choice(sorted(table))
    return r.choice(ways).format(key), table[key]


TASKS = dict(add=add, subtract=subtract, copy=copy, reverse=reverse, sort=sort, count=count, length=length, first=first,
             last=last, upper=upper, largest=largest, after=after, fact=fact)
WEIGHTS = dict(add=4, subtract=3, copy=2, reverse=3, sort=4, count=3, length=1, first=1, last=1, upper=1, largest=2, after=1,
               fact=3)


def held_out(prompt):
    """One prompt in ten is never trained on. Of a fact, that is one or another way to ask for it."""
    return hashlib.sha256(prompt.encode()).digest()[0] < 26


def examples(seed, n, tasks=None, held=False):
    """n examples; held says from which side. The same arguments give the same list on every Python 3."""
    r, out = random.Random(seed), []
    names = list(tasks or TASKS)
    weights = [WEIGHTS[t] for t in names]
    while len(out) < n:
        task = r.choices(names, weights)[0]
        prompt, answer = TASKS[task](r)
        if held_out(prompt) == held:
            out.append((task, prompt, answer))
    return out


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for task in TASKS:
        for _, prompt, answer in examples(seed, 3, [task]):
            print(f"{task:9} {prompt}  ->  {answer}")
