"""The supervisor: decides with the engine, stores facts in the journal, and acts through a backend.

``reactor`` decides, persists, then publishes; ``executor`` carries out instructions; ``services`` answer
calls. The README of this folder shows all parts.
"""
