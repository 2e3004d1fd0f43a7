"""The dashboard: a Streamlit app whose entry file `app.py` is a router to the pages in `views/`."""
