"""The tests of Partita, from one function to many processes."""
