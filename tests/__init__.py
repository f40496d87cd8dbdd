"""The tests, in the folders of the packages that they test, and the tools that several of them share."""
