"""What a corpus is made from: options, recipes and the names that users give."""
