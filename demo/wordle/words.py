"""Words of five letters. The first ones are the default game's."""

_WORDS = """
crane slate brick plumb ghost toxic vivid mango fjord jelly waltz quick
house mouse lemon olive tiger zebra horse sheep snake whale robin eagle
apple grape peach berry bread toast honey sugar water river ocean beach
stone metal glass paper cloth chair table couch clock watch phone radio
music dance piano drums flute violin
plant grass trees bloom petal thorn roots seeds field farms barns wheat
sunny rainy windy storm cloud frost blaze flame smoke ember light night
black white green brown amber coral ivory olden early later today month
train plane truck wagon canoe ferry wheel brake motor pilot route track
smile laugh cheer frown angry happy proud brave timid eager loyal noble
dream sleep awake alert quiet noisy loud sharp blunt smooth rough heavy
north south right wrong first third seven eight forty fifty sixty
bacon pasta pizza salad curry spice onion basil thyme cocoa juice cider
nurse judge guard baker miner actor coach queen knight prince crown
"""


def words(count):
    """The first so many of them."""
    known = [word for word in dict.fromkeys(_WORDS.split()) if len(word) == 5]
    if not 2 <= count <= len(known):
        raise ValueError(f"the game has 2 to {len(known)} words, not {count}")
    return known[:count]
