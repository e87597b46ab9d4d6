"""Scores to bars: MIDI and ABC files read as a set of bars, their facts, and captions made of facts.

Nothing here needs torch. `meshcap.vision.score` makes Regions of what `meshcap.music.features` measures.
"""
