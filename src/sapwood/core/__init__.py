"""The vocabulary that scheduler, engine and server share. Imports no torch; every type here is small and mostly frozen."""
