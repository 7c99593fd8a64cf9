"""The command `megalith`: one thin file per verb, imported when chosen."""
