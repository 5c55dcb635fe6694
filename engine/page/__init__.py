"""The live page of a run: a server that shows its stream in browsers, and the page as one file at the end.

- `follow`: reads the stream - `facts`, `lanes`: say what it means, as rows and sentences, and as a chart
- `panels`: draws it, by `partita.engine.view` - `prometheus`: writes it for machines - `frozen`: as one file
- `turns`: which browser is sent news now
- `server`: shows it in browsers, behind `gate`, as a process of its own (`__main__`); needs the extra `page`
"""

__all__: list[str] = []
