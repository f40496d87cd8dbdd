"""Pure decisions and the data they are about: no database, no HTTP, no clock of their own."""
