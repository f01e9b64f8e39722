"""How results look to a person. Nothing in here asks for anything: it is given what to show."""
