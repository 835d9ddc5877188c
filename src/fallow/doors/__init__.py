"""The doors: where people and programs come in. They parse a request, call the rooms behind them, and lay out the
answer."""
