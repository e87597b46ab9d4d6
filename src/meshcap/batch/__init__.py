"""Captions for a million pictures: listed, captioned in blocks, resumed where stopped, written where they are wanted.

A job is a list of pictures cut into blocks. A block's rows are one file of the job's folder, written whole or not at
all; what has no file yet is still to do. So a job survives being killed at any moment, and whoever captions the blocks,
this process or a Ray cluster, hands in the same rows.
"""
