-- Caches hold the document of a route by the name in model_aliases.
CREATE OR REPLACE TRIGGER routes_changed
    AFTER UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION announce_change();
