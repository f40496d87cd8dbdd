-- Caches hold the document of a project's route by the name in model_aliases, which announces its making and its end.
CREATE OR REPLACE TRIGGER routes_changed
    AFTER UPDATE ON routes FOR EACH ROW EXECUTE FUNCTION announce_change();

-- A route of an organization may change what each of its projects finds.
CREATE OR REPLACE TRIGGER shared_routes_made
    AFTER INSERT ON routes FOR EACH ROW WHEN (NEW.project_id IS NULL) EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER shared_routes_removed
    AFTER DELETE ON routes FOR EACH ROW WHEN (OLD.project_id IS NULL) EXECUTE FUNCTION announce_change();
